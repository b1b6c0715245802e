"""What the machine has: the device that a computation asks for, and enough memory for it."""

import psutil

from repcap_utils.errors import RepcapError


def torch_device(device):
    """The torch device of that name; None means the CPU.

    Raises:
        RepcapError: no such device on this machine.
    """
    import torch  # loaded late: the closed forms that share a module with a simulation do without it

    try:
        place = torch.device("cpu" if device is None else device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise RepcapError(f"device {str(device)!r} cannot be used here ({reason}); use 'cpu'") from error
    return place


def free_memory(device) -> int:
    """Free memory of a torch device, in bytes."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def require_memory(needed: int, what: str) -> None:
    """Refuse a computation that needs more than the free memory, in bytes, before it starts.

    Raises:
        RepcapError: `needed` exceeds what is free.
    """
    available = psutil.virtual_memory().available
    if needed > available:
        raise RepcapError(
            f"not enough memory: {what} need about {needed / 2**30:.1f} GiB and {available / 2**30:.1f} GiB are free;"
            " choose a smaller size or a larger machine"
        )
