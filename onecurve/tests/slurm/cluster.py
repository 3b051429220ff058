"""A real Slurm of two nodes on this machine, which is gone again afterwards.

A node is a network namespace with a name, an address and a slurmd of its own; a third one is the
login node, where slurmctld and munged run and commands are typed. All processes are in these
namespaces, so what is left of them in the end is found and ended. The packages stay installed.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scancel", "scontrol", "squeue")
HOSTS = {"login": "10.231.78.1", "node0": "10.231.78.10", "node1": "10.231.78.11"}
NODES = ("node0", "node1")
SECONDS_TO_START = 60

# More cores and memory than there may be: jobs of tests wait for each other's time anyway.
CONF = """ClusterName=tests
SlurmctldHost=login({login})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job is not begun while credentials of its first life are valid.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0
KillWait=60
NodeName=node0 NodeAddr={node0} NodeHostname=node0 CPUs=16 RealMemory=64000
NodeName=node1 NodeAddr={node1} NodeHostname=node1 CPUs=16 RealMemory=64000
PartitionName=long Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP
"""
ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


class CannotRun(Exception):
    """This machine can have no Slurm. The message is one line."""


def install() -> None:
    """See to it that Slurm is there.

    Raises:
        CannotRun: If this machine does not let it, or has no namespaces for the nodes.
    """
    if os.geteuid() != 0:
        raise CannotRun("not root, who alone may make network namespaces and install packages")
    if subprocess.run("ip -V && unshare -n -m -u nsenter -V", shell=True).returncode:
        raise CannotRun("no network namespaces: iproute2, util-linux or the kernel's permission")
    if all(map(shutil.which, PROGRAMS)):
        return
    told = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update"], capture_output=True)
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
    done = subprocess.run(command, env=told, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"`{' '.join(command)}` failed: {done.stderr.strip()[-200:]}")


class Cluster:
    """Commands of its login node.

    Args:
        folder: Where Slurm keeps its files; readable for all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = folder / "hosts"
        self.conf = folder / "slurm.conf"

    def namespace(self, host: str) -> str:
        """Its name, which no other cluster of this machine has."""
        return f"slurm{os.getpid()}-{host}"

    def on(self, host: str, *command: str) -> list[str]:
        """A command of a host, as this machine types it."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace(host)}", "unshare", "-u", "-m"]
        return [*enter, "bash", "-c", ENTER, str(self.hosts), host, *command]

    def run(self, *command: str, folder: Path, timeout: float = 300, **environment: str) -> str:
        """What a command prints that must succeed, errors included."""
        done = subprocess.run(
            self.on("login", *command), cwd=folder, env={**self.environment(), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """As a user's shell has it: nothing of Slurm but where its configuration is."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**ours, "SLURM_CONF": str(self.conf)}

    def job(self, number: str) -> dict[str, str]:
        """Slurm's own record of a job: `scontrol show job`."""
        said = self.run("scontrol", "--oneliner", "show", "job", number, folder=self.folder)
        return dict(re.findall(r"(?:^|\s)([\w:/]+)=(\S*)", said))

    def wait(self, number: str, *states: str, seconds: float = 240) -> dict[str, str]:
        """The record of a job, once it is in one of some states."""
        deadline = time.monotonic() + seconds
        while (record := self.job(number))["JobState"] not in states:
            assert time.monotonic() < deadline, f"{record}\n{self.logs()}"
            time.sleep(0.5)
        return record

    def logs(self) -> str:
        """The last lines of what the daemons say."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in files)


@contextmanager
def running() -> Iterator[Cluster]:
    """A cluster whose nodes are idle."""
    # munge wants a path on which nobody else can write; pytest's folders are closed to all others.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = Cluster(folder)
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            _write(cluster)
            _connect(cluster)
            _start(cluster, daemons)
            yield cluster
        finally:
            _take_down(cluster, daemons)


def _write(cluster: Cluster) -> None:
    for name in ("munge", "state", "spool-node0", "spool-node1"):
        (cluster.folder / name).mkdir(mode=0o755)
    key = cluster.folder / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    lines = [f"{address} {host}" for host, address in HOSTS.items()]
    cluster.hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    cluster.conf.write_text(CONF.format(folder=cluster.folder, **HOSTS))


def _connect(cluster: Cluster) -> None:
    login = cluster.namespace("login")
    for host in HOSTS:
        _ip("netns", "add", cluster.namespace(host))
        _ip("-n", cluster.namespace(host), "link", "set", "lo", "up")
    _ip("-n", login, "link", "add", "eth0", "type", "bridge")
    for host in NODES:
        node = cluster.namespace(host)
        _ip(*f"-n {login} link add {host} type veth peer name eth0 netns {node}".split())
        _ip("-n", login, "link", "set", host, "master", "eth0", "up")
    for host, address in HOSTS.items():
        _ip("-n", cluster.namespace(host), "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", cluster.namespace(host), "link", "set", "eth0", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _start(cluster: Cluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    munge = cluster.folder / "munge"
    files = [f"--{name}-file={munge}/{name}" for name in ("key", "log", "pid", "seed")]
    commands = [
        ("login", "munged", "--foreground", "--force", f"--socket={munge}/socket", *files),
        ("login", "slurmctld", "-D", "-c", "-f", str(cluster.conf)),
        *((node, "slurmd", "-D", "-f", str(cluster.conf)) for node in NODES),
    ]
    for host, name, *arguments in commands:
        with (cluster.folder / f"{name}-{host}-said.log").open("wb") as said:
            daemons.append(
                subprocess.Popen(
                    cluster.on(host, name, *arguments), env=cluster.environment(),
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                )
            )  # fmt: skip
        deadline = time.monotonic() + SECONDS_TO_START
        while name == "munged" and not (munge / "socket").exists():
            assert time.monotonic() < deadline, cluster.logs()
            time.sleep(0.05)
    states = ["sinfo", "--noheader", "--Node", "--format=%T"]
    said = ""
    while said.split() != ["idle"] * len(NODES):
        assert time.monotonic() < deadline, f"{said}\n{cluster.logs()}"
        time.sleep(0.2)
        said = subprocess.run(
            cluster.on("login", *states), env=cluster.environment(), capture_output=True, text=True
        ).stdout


def _take_down(cluster: Cluster, daemons: list[subprocess.Popen[bytes]]) -> None:
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for host in HOSTS:
            listed = ["ip", "netns", "pids", cluster.namespace(host)]
            found = subprocess.run(listed, capture_output=True, text=True).stdout.split()
            for pid in map(int, found):
                with suppress(ProcessLookupError):
                    os.kill(pid, sent)
        for daemon in daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=10)
    for host in HOSTS:
        subprocess.run(["ip", "netns", "delete", cluster.namespace(host)], capture_output=True)
