"""The GPUs of this machine, by NVIDIA's management library (NVML, ``libnvidia-ml.so.1``, which comes with the driver).
Only to tell an operator what is there: nothing is scheduled by it."""

import ctypes
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"
_NAME_BYTES: Final = 96


def find_devices(library: str = LIBRARY) -> tuple[str, ...] | str:
    """The devices' names in NVML's order; in words, why none can be told."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return f"{library} is not here: no NVIDIA driver is installed, or none for this container"
    status = nvml.nvmlInit_v2()
    if status != 0:
        return f"NVML does not start ({_error(nvml, status)})"
    try:
        count = ctypes.c_uint()
        status = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if status != 0:
            return f"NVML does not count devices ({_error(nvml, status)})"
        return tuple(_name(nvml, index) for index in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _name(nvml: ctypes.CDLL, index: int) -> str:
    device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    status = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    if status == 0:
        status = nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(_NAME_BYTES))
    return name.value.decode("utf-8", "replace") if status == 0 else f"device {index} ({_error(nvml, status)})"


def _error(nvml: ctypes.CDLL, status: int) -> str:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    text = nvml.nvmlErrorString(ctypes.c_int(status))
    return text.decode("utf-8", "replace") if text else f"error {status}"
