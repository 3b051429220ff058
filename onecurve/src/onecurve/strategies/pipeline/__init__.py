"""Pipeline parallelism: partition, schedules, gradients, state, timeline."""
