from datetime import timedelta

from torch.distributed import Backend, Store

def create(
    store: Store, rank: int, size: int, timeout: timedelta, name: str, global_ranks: list[int]
) -> Backend: ...
