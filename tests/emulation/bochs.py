"""Boots a Debian kernel in Bochs, whose processor has AVX-512 and VNNI; its only program is `compare`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ISOLINUX = Path("/usr/lib/ISOLINUX/isolinux.bin")
LDLINUX = Path("/usr/lib/syslinux/modules/bios/ldlinux.c32")
BIOS, VGA_BIOS = Path("/usr/share/bochs/BIOS-bochs-latest"), Path("/usr/share/bochs/VGABIOS-lgpl-latest")
NEEDED = "apt-get install bochs isolinux syslinux-common xorriso cpio g++"

BOCHSRC = """\
config_interface: textconfig
display_library: rfb, options="timeout=0"
megs: 512
cpu: model={model}, count=1, ips=50000000
romimage: file={bios}
vgaromimage: file={vga_bios}
ata0-master: type=cdrom, path={iso}, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={serial}
log: {log}
panic: action=fatal
error: action=report
info: action=ignore
clock: sync=none
plugin_ctrl: speaker=0
"""

# Nothing that a processor's bugs are worked around by; every such detour costs an emulator minutes.
KERNEL_LINE = (
    "console=ttyS0 mitigations=off nokaslr tsc=reliable lpj=1000000 random.trust_cpu=on quiet panic=1"
)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", type=Path, help="a vmlinuz, of Debian's linux-image-amd64 or any other")
    parser.add_argument("library", type=Path, help="the compiled native.so")
    parser.add_argument("--model", default="corei7_icelake_u", help="Bochs's processor: %(default)s")
    parser.add_argument("--cases", type=int, default=20, help="of each kernel: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds: %(default)s")
    options = parser.parse_args()
    missing = [str(path) for path in (ISOLINUX, LDLINUX, BIOS, VGA_BIOS) if not path.exists()]
    missing += [tool for tool in ("bochs", "xorriso", "cpio", "g++") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; {NEEDED}")
    with tempfile.TemporaryDirectory(prefix="hundredfold-bochs-") as folder:
        work = Path(folder)
        iso = _iso(work, options.kernel, _initramfs(work, options.library), options.cases, options.seed)
        return _boot(work, iso, options.model, options.timeout)


def _initramfs(work: Path, library: Path) -> Path:
    """The program, the library and what both are linked to."""
    root = work / "root"
    for name in ("dev", "proc", "sys"):
        (root / name).mkdir(parents=True)
    program = root / "init"
    sources = sorted((HERE / "compare").glob("*.cpp"))
    subprocess.run(["g++", "-std=c++17", "-O1", "-o", program, *sources, "-ldl"], check=True)
    shutil.copy(library, root / "native.so")
    for needs in (program, library):
        listed = subprocess.run(["ldd", needs], check=True, capture_output=True, text=True).stdout
        for path in re.findall(r"(/\S+) \(0x", listed):
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(path), target)
    subprocess.run(["mknod", root / "dev/console", "c", "5", "1"], check=True)
    packed = work / "initrd"
    listing = subprocess.run(["find", ".", "-print0"], cwd=root, check=True, capture_output=True).stdout
    with packed.open("wb") as out:
        command = ["cpio", "--null", "--create", "--format=newc", "--quiet"]
        subprocess.run(command, cwd=root, input=listing, stdout=out, check=True)
    return packed


def _iso(work: Path, kernel: Path, initramfs: Path, cases: int, seed: int) -> Path:
    disc = work / "disc"
    disc.mkdir()
    for source, name in ((ISOLINUX, ""), (LDLINUX, ""), (kernel, "vmlinuz"), (initramfs, "initrd")):
        shutil.copy(source, disc / (name or source.name))
    append = f"initrd=initrd {KERNEL_LINE} -- /native.so {cases} {seed}"
    (disc / "isolinux.cfg").write_text(
        f"default compare\nlabel compare\n  kernel vmlinuz\n  append {append}\n"
    )
    iso = work / "disc.iso"
    boot = [
        "-b",
        "isolinux.bin",
        "-c",
        "boot.cat",
        "-no-emul-boot",
        "-boot-load-size",
        "4",
        "-boot-info-table",
    ]
    subprocess.run(
        ["xorriso", "-as", "mkisofs", "-quiet", "-o", iso, *boot, disc], check=True, capture_output=True
    )
    return iso


def _boot(work: Path, iso: Path, model: str, timeout: float) -> int:
    serial, log = work / "serial", work / "bochs.log"
    config = work / "bochsrc"
    config.write_text(
        BOCHSRC.format(model=model, bios=BIOS, vga_bios=VGA_BIOS, iso=iso, serial=serial, log=log)
    )
    # Debian's Bochs begins in its debugger
    (work / "commands").write_text("continue\n")
    command = ["bochs", "-q", "-f", str(config), "-rc", str(work / "commands")]
    with (work / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=work, stdin=subprocess.PIPE, stdout=out, stderr=out)
    shown, ends = 0, time.monotonic() + timeout
    try:
        while True:
            text = serial.read_text(errors="replace") if serial.exists() else ""
            complete = text[: text.rfind("\n") + 1]
            sys.stdout.write(complete[shown:].replace("\r", ""))
            sys.stdout.flush()
            shown = len(complete)
            verdict = re.search(r"^(\d+) passed, (\d+) failed\r?$", complete, re.MULTILINE)
            if verdict:
                return 1 if int(verdict[2]) else 0
            if process.poll() is not None or time.monotonic() > ends:
                print("no verdict; the end of Bochs's log:\n", log.read_text(errors="replace")[-2000:])
                print((work / "out").read_text(errors="replace")[-2000:])
                return 2
            time.sleep(1)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
