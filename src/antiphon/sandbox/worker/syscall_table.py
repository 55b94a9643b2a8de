"""The system calls that code in a container may make, with their numbers on x86-64 and aarch64.

The list was made from recorded runs: `tools/sandbox_syscalls.py` runs programs with numpy, pandas, matplotlib, pillow,
subprocesses, threads, multiprocessing and asyncio under strace and prints what is missing here. Variants of recorded
calls that other versions of glibc use were added. Left out although recorded: mbind, which places memory of a process.
Left out on purpose: calls that hold memory which no limit counts (memfd_create, shmget, mq_open, msgget), that reach
other processes (ptrace, process_vm_readv, pidfd_getfd, kcmp), or that widen the kernel's surface (io_uring, bpf, keys,
userfaultfd, perf_event_open, splice, inotify, mounts and namespaces).
"""

from platform import machine
from typing import Final

AUDIT_ARCHES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h

# name=number on x86-64/number on aarch64; calls of older interfaces exist on x86-64 only
_ALLOWED: Final = """
read=0/63 readv=19/65 write=1/64 writev=20/66 pread64=17/67 preadv=295/69 preadv2=327/286 pwrite64=18/68
pwritev=296/70 pwritev2=328/287 open=2 openat=257/56 openat2=437/437 creat=85 close=3/57 close_range=436/436
dup=32/23 dup2=33 dup3=292/24 lseek=8/62 stat=4 fstat=5/80 lstat=6 newfstatat=262/79 statx=332/291 statfs=137/43
fstatfs=138/44 access=21 faccessat=269/48 faccessat2=439/439 readlink=89 readlinkat=267/78 getdents=78
getdents64=217/61 getcwd=79/17 chdir=80/49 fchdir=81/50 mkdir=83 mkdirat=258/34 mknod=133 mknodat=259/33
rmdir=84 unlink=87 unlinkat=263/35 rename=82 renameat=264/38 renameat2=316/276 link=86 linkat=265/37 symlink=88
symlinkat=266/36 chmod=90 fchmod=91/52 fchmodat=268/53 fchmodat2=452/452 chown=92 fchown=93/55 lchown=94
fchownat=260/54 umask=95/166 truncate=76/45 ftruncate=77/46 fadvise64=221/223 fsync=74/82
fdatasync=75/83 sync_file_range=277/84 sendfile=40/71 copy_file_range=326/285 flock=73/32 utime=132 utimes=235
futimesat=261 utimensat=280/88 getxattr=191/8 lgetxattr=192/9 fgetxattr=193/10 listxattr=194/11
llistxattr=195/12 flistxattr=196/13 readahead=187/213 pipe=22 pipe2=293/59 poll=7 ppoll=271/73 select=23
pselect6=270/72 epoll_create=213 epoll_create1=291/20 epoll_ctl=233/21 epoll_wait=232 epoll_pwait=281/22
epoll_pwait2=441/441 eventfd=284 eventfd2=290/19 timerfd_create=283/85 timerfd_settime=286/86
timerfd_gettime=287/87 signalfd=282 signalfd4=289/74 munmap=11/215 mprotect=10/226 mremap=25/216
madvise=28/233 brk=12/214 msync=26/227 mincore=27/232 membarrier=324/283 rseq=334/293 futex=202/98
futex_waitv=449/449 set_robust_list=273/99 set_tid_address=218/96 vfork=58 fork=57 execve=59/221
execveat=322/281 exit=60/93 exit_group=231/94 wait4=61/260 waitid=247/95 getpid=39/172 getppid=110/173
gettid=186/178 getuid=102/174 geteuid=107/175 getgid=104/176 getegid=108/177 getresuid=118/148 getresgid=120/150
getgroups=115/158 getpgid=121/155 getpgrp=111 getsid=124/156 rt_sigaction=13/134 rt_sigprocmask=14/135
rt_sigreturn=15/139 rt_sigsuspend=130/133 rt_sigpending=127/136 rt_sigtimedwait=128/137 sigaltstack=131/132
restart_syscall=219/128 pause=34 alarm=37 getitimer=36/102 setitimer=38/103 timer_create=222/107
timer_settime=223/110 timer_gettime=224/108 timer_getoverrun=225/109 timer_delete=226/111 nanosleep=35/101
clock_nanosleep=230/115 clock_gettime=228/113 clock_getres=229/114 gettimeofday=96/169 time=201 times=100/153
getrlimit=97/163 getrusage=98/165 getpriority=140/141 sched_yield=24/124 sched_getaffinity=204/123
sched_getparam=143/121 sched_getscheduler=145/120 sched_get_priority_max=146/125 sched_get_priority_min=147/126
sched_rr_get_interval=148/127 getcpu=309/168 sysinfo=99/179 uname=63/160 getrandom=318/278 arch_prctl=158
getsockname=51/204 getpeername=52/205 getsockopt=55/209 sendto=44/206 recvfrom=45/207
sendmsg=46/211 recvmsg=47/212 sendmmsg=307/269 recvmmsg=299/243 shutdown=48/210 pidfd_open=434/434
"""

# Allowed with some arguments, or at some levels: seccomp.py has the rules.
_RESTRICTED: Final = """
clone=56/220 clone3=435/435 socket=41/198 socketpair=53/199 ioctl=16/29 fcntl=72/25 prctl=157/167
prlimit64=302/261 setrlimit=160/164 setpriority=141/140 sched_setaffinity=203/122 kill=62/129 tkill=200/130
tgkill=234/131 rt_sigqueueinfo=129/138 rt_tgsigqueueinfo=297/240 pidfd_send_signal=424/424 setsid=112/157
setpgid=109/154 bind=49/200 connect=42/203 listen=50/201 accept=43/202 accept4=288/242
mmap=9/222 fallocate=285/47 setsockopt=54/208
"""


def _parse(table: str) -> dict[str, int]:
    """Return the numbers of this machine by name."""
    column = {"x86_64": 0, "aarch64": 1}.get(machine(), 0)
    rows = [(name, numbers.split("/")) for name, _, numbers in (row.partition("=") for row in table.split())]
    return {name: int(numbers[column]) for name, numbers in rows if column < len(numbers)}


ALLOWED: Final = _parse(_ALLOWED)
RESTRICTED: Final = _parse(_RESTRICTED)
