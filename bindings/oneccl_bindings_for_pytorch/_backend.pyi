from datetime import timedelta

from torch.distributed import Backend, Store

class ProcessGroupCCL(Backend):
    def has_error(self) -> bool: ...

def create(
    store: Store, rank: int, size: int, timeout: timedelta, name: str, global_ranks: list[int]
) -> Backend: ...
def stop() -> None: ...
