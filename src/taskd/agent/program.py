"""Runs the user's program in a process that was prepared for it, as ``python script.py`` would.

A training script must not notice who started it: it looks at ``sys.argv`` and ``__main__``, pickles
functions by ``__main__``, spawns helpers that import ``__file__`` again, relies on ``atexit`` and on the
joining of threads, and people read its traceback. ``runpy.run_path`` is not enough, because it takes the
module away when the code ends; so the steps of CPython's own ``main`` are repeated here.

A cold worker imports this module before the user's first line, hence nothing but ``sys`` and ``os`` at the
top, and a plain string for the kind of program.
"""

# Pathlib is start-up time of every worker.
# ruff: noqa: PTH109, PTH112, PTH118, PTH120, PTH123

import os
import sys
from types import CodeType, TracebackType

SCRIPT = "script"
MODULE = "module"
CANNOT_OPEN = 2

# The interpreter puts a directory in front of sys.path for -c as for -m. Remove it before anything is
# imported: a file called json.py where the job was started must not get in our way.
BOOT = "import sys\nif not sys.flags.safe_path: del sys.path[0]\nfrom {module} import main\nmain()\n"


def command_line(kind: str, target: str, args: tuple[str, ...], error_file: str) -> list[str]:
    """Return the command that runs a program in a fresh interpreter."""
    boot = BOOT.format(module=__name__)
    return [sys.executable, "-u", "-c", boot, error_file, kind, target, *args]


def shown(kind: str, target: str, args: tuple[str, ...]) -> list[str]:
    """Return the command line that a user would have typed for a program."""
    return [sys.executable, "-u", *(["-m"] if kind == MODULE else []), target, *args]


def main() -> None:
    """Run the program that the command line of a cold worker names."""
    error_file, kind, target, *args = sys.argv[1:]
    run(kind, target, args, error_file)


def run(kind: str, target: str, args: list[str], error_file: str) -> None:
    """Run a program; returns or raises what makes the interpreter end with the right status.

    To be called at the top level, so that what follows is the interpreter's normal end: threads are joined,
    exit handlers run, streams are flushed.
    """
    try:
        if kind == MODULE:
            _run_module(target, args)
        else:
            _run_script(target, args)
    except SystemExit as end:
        if end.code not in (None, 0):
            # As the interpreter does with errors: who is called at its end learns that the program failed.
            sys.last_value = end
        raise
    except BaseException as error:  # This is the last frame below the interpreter itself.
        trace = _users_part(error.__traceback__)
        if error_file and not isinstance(error, KeyboardInterrupt):
            _save(error_file, error, trace)
        _show(error, trace)
        if isinstance(error, KeyboardInterrupt):
            # The interpreter dies of SIGINT, after its normal end, if it sees this exception. It has been
            # printed already.
            sys.excepthook = _silent
            raise
        raise SystemExit(1) from None


def _run_script(target: str, args: list[str]) -> None:
    sys.argv = [target, *args]
    sys.orig_argv = shown(SCRIPT, target, tuple(args))
    path = os.path.join(os.getcwd(), target)
    if os.path.isdir(path) or _is_archive(path):
        sys.path.insert(0, path)
        _fresh_main()
        import runpy

        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    names = _fresh_main()
    code = _load(path)
    loaders = sys.modules["_frozen_importlib_external"]
    kind = loaders.SourcelessFileLoader if path.endswith(".pyc") else loaders.SourceFileLoader
    names.update(__file__=path, __cached__=None, __loader__=kind("__main__", path))
    exec(code, names)  # noqa: S102 - running the user's program is the purpose.


def _run_module(target: str, args: list[str]) -> None:
    sys.argv = ["-m", *args]
    sys.orig_argv = shown(MODULE, target, tuple(args))
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    _fresh_main()
    import runpy

    # Private, but it is the very function that CPython calls for -m.
    runpy._run_module_as_main(target)  # type: ignore[attr-defined]  # noqa: SLF001


def _fresh_main() -> dict[str, object]:
    """Put an empty ``__main__`` in place, with the names that CPython gives it."""
    module = type(sys)("__main__")
    names: dict[str, object] = vars(module)
    names.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = module
    return names


def _load(path: str) -> CodeType:
    if path.endswith(".pyc"):
        loader = sys.modules["_frozen_importlib_external"].SourcelessFileLoader("__main__", path)
        code: CodeType = loader.get_code("__main__")
        return code
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        raise SystemExit(CANNOT_OPEN) from None
    return compile(source, path, "exec", dont_inherit=True)


def _is_archive(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Cut our own frames, and those of runpy, off the outer end of a traceback."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in {__name__, "runpy"}:
        trace = trace.tb_next
    return trace


def _save(path: str, error: BaseException, trace: TracebackType | None) -> None:
    try:
        from taskd.agent import errorfile

        errorfile.write_error_file(path, error.with_traceback(trace), root=sys.path[0])
    except Exception as problem:  # noqa: BLE001 - the user's own error matters more than ours.
        sys.stderr.write(f"taskd: cannot write {path}: {problem}\n")


def _show(error: BaseException, trace: TracebackType | None) -> None:
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as problem:  # noqa: BLE001 - as the interpreter does it.
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(problem), problem, problem.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _silent(*_: object) -> None:
    pass
