"""Records the system calls of programs such as code interpreters run, and compares them with the sandbox's allow-list.

`python -m tools.sandbox_syscalls [PYTHON]` runs each program under `strace -f` without any confinement, with an
interpreter that has numpy, pandas, matplotlib and pillow, and prints the calls that the list in
`src/antiphon/sandbox/worker/syscall_table.py` lacks, and where they were seen. The list was made this way with CPython
3.11 and glibc 2.36, then completed by variants of the same calls that other versions of glibc use, and reduced by those
that reach other processes or hold memory that no limit counts: its comments name them.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon.sandbox.worker.syscall_table import ALLOWED, RESTRICTED

PROGRAMS = {
    "files": "import shutil, os, tempfile; d = tempfile.mkdtemp(); open(d + '/a', 'w').write('x' * 9999)\n"
    "shutil.copytree(d, d + '2'); os.rename(d + '2/a', d + '2/b'); os.symlink('b', d + '2/c')\n"
    "os.truncate(d + '/a', 5); os.link(d + '/a', d + '/l')\n"
    "os.chmod(d + '/a', 0o600); os.utime(d + '/a'); os.mkfifo(d + '/f')\nos.statvfs(d)\n"
    "shutil.make_archive(d + '/z', 'zip', d + '2'); shutil.rmtree(d); shutil.rmtree(d + '2')",
    "sqlite": "import sqlite3; c = sqlite3.connect('/tmp/recorded.db'); c.execute('create table if not exists t (a)')\n"
    "c.execute('insert into t values (1)'); c.commit(); c.close(); import os; os.unlink('/tmp/recorded.db')",
    "subprocess": "import subprocess as s; s.run('ls / | sort | head -3; echo $$; sleep 0.01', shell=True)\n"
    "p = s.Popen(['cat'], stdin=s.PIPE, stdout=s.PIPE); p.communicate(b'x'); p = s.Popen(['sleep', '9']); p.kill()\n"
    "p.wait(); s.run(['grep', '-r', 'root', '/etc/passwd']); s.run(['sed', 's/a/b/', '/etc/passwd'])",
    "threads": "import threading, queue, time; q = queue.Queue(); lock = threading.RLock()\n"
    "t = [threading.Thread(target=q.get) for _ in range(4)]; [x.start() for x in t]; [q.put(1) for _ in t]\n"
    "[x.join() for x in t]; time.sleep(0.01); threading.Event().wait(0.01)",
    "multiprocessing": "import multiprocessing as m\nfor kind in ('fork', 'spawn'):\n"
    "    with m.get_context(kind).Pool(2) as p: p.map(abs, range(9))\n"
    "with m.Manager() as g: g.dict()['a'] = 1\nfrom concurrent.futures import ProcessPoolExecutor as E\n"
    "with E(2) as e: list(e.map(abs, [1, 2]))\nfrom multiprocessing.shared_memory import SharedMemory as S\n"
    "s = S(create=True, size=99); s.close(); s.unlink()",
    "asyncio": "import asyncio\nasync def main():\n"
    "    p = await asyncio.create_subprocess_exec('true'); await p.wait()\n"
    "    s = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)\n"
    "    r, w = await asyncio.open_connection(*s.sockets[0].getsockname()); await r.read(); s.close()\n"
    "    await asyncio.to_thread(print, 1)\nasyncio.run(main())",
    "signals": "import signal, os, resource, select, mmap, time; signal.signal(signal.SIGALRM, print)\n"
    "signal.alarm(1)\n"
    "signal.pause(); signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.02); resource.getrusage(0); os.nice(1)\n"
    "mmap.mmap(-1, 9999); select.select([], [], [], 0); os.getloadavg(); os.sched_yield(); os.times(); os.uname()",
    "numpy": "import numpy as np; a = np.random.rand(400, 400); np.linalg.svd(a @ a); np.save('/tmp/recorded.npy', a)\n"
    "np.load('/tmp/recorded.npy', mmap_mode='r').sum(); np.fft.fft(a); import os; os.unlink('/tmp/recorded.npy')",
    "pandas": "import pandas as pd, numpy as np; f = pd.DataFrame({'a': np.arange(9999) % 7, 'b': 1.5})\n"
    "f.groupby('a').agg(['sum', 'mean']); f.to_csv('/tmp/recorded.csv'); pd.read_csv('/tmp/recorded.csv').describe()\n"
    "f.rolling(3).mean(); pd.date_range('2024', periods=9).tz_localize('Europe/Berlin'); f.merge(f.head(9), on='a')",
    "matplotlib": "import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as p, io\n"
    "p.plot([1, 2]); p.title('$x^2$'); p.savefig(io.BytesIO()); p.savefig('/tmp/r.pdf'); p.savefig('/tmp/r.svg')",
    "pillow": "from PIL import Image; i = Image.new('RGB', (99, 99)); i.save('/tmp/r.png'); i.save('/tmp/r.jpg')\n"
    "Image.open('/tmp/r.jpg').resize((9, 9)).load()",
}  # fmt: skip
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)", re.MULTILINE)


def record(python: str, program: str) -> set[str]:
    """Return the names of the system calls that a program and its processes make."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "strace")
        command = ["strace", "-f", "-qq", "-o", str(log), python, "-I", "-c", program]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
        return set(_CALL.findall(log.read_text(errors="replace")))


def main() -> int:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    seen: dict[str, set[str]] = {}
    for name, program in PROGRAMS.items():
        for call in record(python, program):
            seen.setdefault(call, set()).add(name)
    for call in sorted(seen.keys() - ALLOWED.keys() - RESTRICTED.keys()):
        print(f"{call:24} {', '.join(sorted(seen[call]))}")
    print(f"{len(seen)} calls in {len(PROGRAMS)} programs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
