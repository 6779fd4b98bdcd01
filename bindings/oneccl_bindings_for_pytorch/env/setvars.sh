# Sourced by scripts written for Intel's package, which required it. This package finds its libraries without this file,
# which only makes them visible to other programs of the same shell. Variables that are set are not changed.
_ccl_lib="$(cd "$(dirname "${BASH_SOURCE:-$0}")/../../../.." && pwd)"
if [ -e "$_ccl_lib/libfabric.so.1" ]; then
    case ":${LD_LIBRARY_PATH:-}:" in
    *":$_ccl_lib:"*) ;;
    *) export LD_LIBRARY_PATH="$_ccl_lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
    esac
    export FI_PROVIDER_PATH="${FI_PROVIDER_PATH:-$_ccl_lib}"
fi
unset _ccl_lib
