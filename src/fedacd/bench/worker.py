"""The process of one turn: `python -m fedacd.bench.worker JOB` prints a line of JSON a contestant and nothing else."""

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator

import torch

from fedacd.bench.contestants import Contestant, contestants
from fedacd.bench.job import PARENT, Job
from fedacd.bench.measure import Measured
from fedacd.bench.workload import Workload, find
from fedacd.environment import end_with_parent, rank_and_size


def run(job: Job) -> Iterator[Measured]:
    """Measure contestants in this process, one after the other; none in a process that only helps."""
    device = job.device.partition(":")[0]
    work = find(job.workload, device=device, quick=job.quick)
    for name in job.contestants:
        contestant = contestants(work, device)[name]
        if measured := _runner(contestant.kind)(job, contestant.work(work), contestant):
            yield measured
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # nothing of it for the next one
            gc.collect()
            torch.cuda.reset_peak_memory_stats(job.device)


def _runner(kind: str) -> Callable[[Job, Workload, Contestant], Measured | None]:
    if kind == "pfl":
        from fedacd.bench import pfl_loop

        return pfl_loop.run
    if kind == "flower":
        from fedacd.bench import flower_loop

        return flower_loop.run
    from fedacd.bench import engines

    return engines.run_plain if kind == "plain" else engines.run_engine


def main() -> None:
    end_with_parent()
    if rank_and_size() == (0, 1) and os.environ.get(PARENT, "") != str(os.getppid()):
        sys.exit("the bench has ended")
    # What libraries print goes to stderr; stdout is kept for the result.
    with os.fdopen(os.dup(1), "w") as result:
        os.dup2(2, 1)
        for measured in run(Job(**json.loads(sys.argv[1]))):
            result.write(json.dumps(dataclasses.asdict(measured)) + "\n")
            result.flush()
    if torch.distributed.is_initialized():
        # The result is out. Threads of torch.distributed sometimes abort an ordinary end, so it is cut short.
        torch.distributed.barrier()
        os._exit(0)


if __name__ == "__main__":
    main()
