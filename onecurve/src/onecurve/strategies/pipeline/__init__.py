"""Pipeline parallelism: partition, schedule, forward-only passes, gradients, state, timeline."""
