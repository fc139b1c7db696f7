import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mothertongue.errors import CheckpointError
from mothertongue_trainer.lock import run_lock

HOLD = """
import sys, time
from pathlib import Path
from mothertongue_trainer.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_is_gone_however_it_went(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match=f"process {first.pid} is"), run_lock(tmp_path):
            pass
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    with run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        pass
