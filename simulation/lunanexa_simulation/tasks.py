"""Looking at the tasks of the running loop, and freeing those that will never go by themselves."""

from typing import Any

import trio


def open_shields(task: trio.lowlevel.Task | None) -> None:
    """Opens the shields of a task and of all below it."""
    if task is None:
        return
    status: Any = task._cancel_status
    while status is not None:
        status._scope.shield = False
        status = status._parent
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            open_shields(child)


def task_tree() -> str:
    """Every task of the running loop, and in which of its functions it waits."""
    root = trio.lowlevel.current_root_task()
    lines: list[str] = []
    if root is not None:
        _draw(root, 0, lines)
    return "\n".join(lines)


def _draw(task: trio.lowlevel.Task, depth: int, lines: list[str]) -> None:
    frames = [frame for frame, _ in task.iter_await_frames()]
    ours = [frame.f_code.co_qualname for frame in frames if not frame.f_globals["__name__"].startswith("trio.")]
    waits_in = frames[-3:][0].f_code.co_name if frames else ""
    lines.append(f"{'  ' * depth}{task.name.rpartition('.')[2]}: {' > '.join((*ours[-4:], waits_in))}")
    for nursery in task.child_nurseries:
        # A set: ordered by name here, since addresses would order it differently each time.
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            _draw(child, depth + 1, lines)
