"""An array script for Slurm: a task a batch of runs, which saves when its time is up, and is queued again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from .._require import require

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --gres=gpu:1
#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="{log}"
#SBATCH --signal=B:TERM@{notice}
{more}
# Made by: ogc bench export. Submit it with sbatch; to submit it again does what is left and nothing twice.

batches=(
{batches}
)

{command} --only "${{batches[$SLURM_ARRAY_TASK_ID]}}" &
run=$!
trap 'kill -TERM $run 2> /dev/null' TERM  # Slurm's, {notice} seconds before the end: the runs are saved
wait $run
code=$?
while kill -0 $run 2> /dev/null; do  # the signal has ended the wait, not the run
    wait $run
    code=$?
done
if [ $code -eq 143 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit $code
"""


def script(
    name: str,
    batches: Sequence[Sequence[str]],
    command: Sequence[str],
    *,
    log: Path,
    time: str,
    more: Sequence[str] = (),
    notice: int = 120,
) -> str:
    """For ``sbatch``.

    :param batches: names of runs, those of one array task together.
    :param command: what runs them, but for ``--only``.
    :param log: without its ending.
    :param time: of a task, as Slurm reads it.
    :param more: further options of ``sbatch``: ``--partition=gpu``.
    :param notice: seconds that are left for saving.
    """
    for option, text in (("script", str(log)), ("time", time), *(("sbatch", each) for each in more)):
        require(text.isprintable(), option, "on one line", text)
    form = re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time)
    require(form is not None, "time", "as Slurm reads it: 04:00:00 or 1-12:00", time)
    for each in more:
        require(each.startswith("-"), "sbatch", "an option with its dashes: --partition=gpu", each)
    require("\\" not in str(log), "script", "without a backslash, at which sbatch fills in no numbers", str(log))
    quoted = str(log).replace("%", "%%").replace('"', r"\"")
    return SCRIPT.format(
        name=name,
        last=len(batches) - 1,
        time=time,
        log=f"{quoted}.%A_%a.log",
        notice=notice,
        more="".join(f"#SBATCH {option}\n" for option in more),
        batches="\n".join(f"    {shlex.quote(','.join(batch))}" for batch in batches),
        command=shlex.join(command),
    )
