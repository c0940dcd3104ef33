"""Computers as folders: the files that tell of an NVIDIA GPU, under a root of their own."""

VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
)


def make_computer(root, gpus=1, driver="nvidia", nodes=True, container=False):
    """Writes a computer's files into a folder and gives it back.

    Args:
        root: An empty folder.
        gpus: NVIDIA GPUs on the PCI bus.
        driver: The kernel driver bound to them, or "".
        nodes: Whether there are device nodes.
        container: Whether it is a container.
    """
    for index in range(gpus):
        slot = root / f"sys/bus/pci/devices/0000:{index + 1:02x}:00.0"
        slot.mkdir(parents=True)
        (slot / "class").write_text("0x030000\n")
        (slot / "vendor").write_text("0x10de\n")
        (slot / "device").write_text("0x2204\n")
        if driver:
            bound = root / "sys/bus/pci/drivers" / driver
            bound.mkdir(parents=True, exist_ok=True)
            (slot / "driver").symlink_to(bound)
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "dev").mkdir()
    if driver == "nvidia":
        (root / "proc/driver/nvidia/version").write_text(VERSION)
    names = ["nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(gpus))]
    for name in names if nodes and driver == "nvidia" else ():
        (root / "dev" / name).touch()
    if container:
        (root / ".dockerenv").touch()
    return root
