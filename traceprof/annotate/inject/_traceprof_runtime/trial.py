"""Runs a known amount of GPU work through the driver, to test what a recorder records.

If CUDA does not work, it prints the reason and exits with 1.
"""

import ctypes
import sys

KERNELS, COPIES, MEMSETS = 200, 60, 40
COPY_BYTES = 65536
_BLOCKS, _THREADS = 8, 128
_TARGETS = (b"sm_52", b"sm_75")  # the second is for future drivers that no longer accept sm_52
_PTX = b"""
.version 7.0
.target %s
.address_size 64
.visible .entry traceprof_trial(.param .u64 place)
{
    .reg .u32 %%r<4>;
    .reg .u64 %%d<4>;
    ld.param.u64 %%d1, [place];
    cvta.to.global.u64 %%d1, %%d1;
    mov.u32 %%r1, %%tid.x;
    mul.wide.u32 %%d2, %%r1, 4;
    add.u64 %%d3, %%d1, %%d2;
    st.global.u32 [%%d3], %%r1;
    ret;
}
\0"""


def _load_driver():
    """Return a function that calls the driver and exits on errors, and the driver library."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit("no CUDA driver: %s" % error)

    def call(name, *arguments):
        code = getattr(library, name)(*arguments)
        if code:
            sys.exit("%s failed with code %d" % (name, code))

    return call, library


def main():
    """Launch kernels, copies, and memsets, partly interleaved, and wait for them."""
    call, driver = _load_driver()
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    device, buffer = ctypes.c_int(), ctypes.c_uint64()
    host = ctypes.create_string_buffer(COPY_BYTES)
    n_bytes, byref = ctypes.c_size_t(COPY_BYTES), ctypes.byref
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), 0)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    if driver.cuModuleLoadData(byref(module), _PTX % _TARGETS[0]):
        call("cuModuleLoadData", byref(module), _PTX % _TARGETS[1])
    call("cuModuleGetFunction", byref(kernel), module, b"traceprof_trial")
    call("cuMemAlloc_v2", byref(buffer), n_bytes)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
    grid = (_BLOCKS, 1, 1, _THREADS, 1, 1, 0, None)
    for number in range(KERNELS):
        if number < MEMSETS:
            call("cuMemsetD8_v2", buffer, ctypes.c_ubyte(0), n_bytes)
        call("cuLaunchKernel", kernel, *grid, arguments, None)
        if number < COPIES // 2:
            call("cuMemcpyHtoD_v2", buffer, host, n_bytes)
        elif number < COPIES:
            call("cuMemcpyDtoH_v2", host, buffer, n_bytes)
    call("cuCtxSynchronize")


if __name__ == "__main__":
    main()
