// libcuda: the calls of CUDA's driver that the course's programs make. What a call must not be given is a fault.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "gpu.h"

static std::vector<Context *> contexts;
static std::map<uintptr_t, size_t> pinned;

// Every call: only one at a time, after cuInit, and not after a fault.
#define CALL                                                 \
    Lock lock;                                               \
    if (devices.empty()) return CUDA_ERROR_NOT_INITIALIZED;  \
    if (faulty) return CUDA_ERROR_ILLEGAL_ADDRESS

#define CALL_IN_CONTEXT                                       \
    CALL;                                                     \
    if (current == nullptr) {                                 \
        simulated_fault("%s: no context is current", __func__); \
        return CUDA_ERROR_INVALID_CONTEXT;                    \
    }

static CUresult outcome() { return faulty ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS; }

// The stream, if it belongs to the current context.
static Stream *in_context(CUstream handle, const char *call) {
    Stream *stream = stream_of(handle);
    if (stream != nullptr && current != nullptr && stream->device == current->device) return stream;
    simulated_fault("%s: the stream is not of the current context", call);
    return nullptr;
}

#define STREAM(handle)                             \
    Stream *stream = in_context(handle, __func__); \
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE

static bool is_pinned(const void *place, size_t bytes) {
    auto after = pinned.upper_bound((uintptr_t)place);
    if (after == pinned.begin()) return false;
    auto [start, size] = *--after;
    return (uintptr_t)place + bytes <= start + size;
}

extern "C" {

// Devices and contexts

CUresult cuInit(unsigned) {
    Lock lock;
    int count = atoi(setting("SIMULATED_GPUS", "1"));
    if (count < 1) return CUDA_ERROR_NO_DEVICE;
    if (!devices.empty()) return CUDA_SUCCESS;
    open_devices(count);
    for (Device *device : devices) contexts.push_back(new Context{device});
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    CALL;
    *count = (int)devices.size();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int number) {
    CALL;
    if (number < 0 || number >= (int)devices.size()) return CUDA_ERROR_INVALID_DEVICE;
    *device = number;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
    CALL;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
        default: *value = 1;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    CALL;
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[0] = (char)(device + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    CALL;
    *pool = (CUmemoryPool)devices[device];
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *) { return CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CALL;
    *context = (CUcontext)contexts[device];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuCtxDestroy(CUcontext) { return CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = (CUcontext)current;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    CALL;
    current = (Context *)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
    CALL_IN_CONTEXT;
    finish_all(current->device);
    return outcome();
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    static thread_local char number[32];
    snprintf(number, sizeof number, "simulated error %d", (int)error);
    *text = number;
    return CUDA_SUCCESS;
}

// NVRTC looks here for what is nobody's business; a table that ends at once has nothing for it.
CUresult cuGetExportTable(const void **table, const CUuuid *) {
    static const size_t empty[] = {sizeof(size_t)};
    *table = empty;
    return CUDA_SUCCESS;
}

// Streams and events

CUresult cuStreamCreate(CUstream *handle, unsigned) {
    CALL_IN_CONTEXT;
    *handle = (CUstream)new_stream(current->device);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
    CALL;
    auto *stream = (Stream *)handle;
    finish(stream, stream->queued);
    stream->device->streams.erase(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
    CALL;
    Stream *stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    finish(stream, stream->queued);
    return outcome();
}

CUresult cuEventCreate(CUevent *event, unsigned) {
    CALL_IN_CONTEXT;
    *event = (CUevent)new Event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    delete (Event *)event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
    CALL;
    STREAM(handle);
    auto time = std::make_shared<uint64_t>(0);
    queue(stream, [=] { *time = simulated_time(); });
    *(Event *)event = Event{stream, stream->queued, time};
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    CALL;
    uint64_t from = *((Event *)start)->time, to = *((Event *)end)->time;
    if (from == 0 || to == 0) return CUDA_ERROR_NOT_READY;
    *milliseconds = ((double)to - (double)from) / 1e6;
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
    CALL;
    Event event = *(Event *)handle;
    if (event.stream == nullptr || advance(event.stream, event.until)) return outcome();
    simulated_pause();
    return CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
    CALL;
    Event event = *(Event *)handle;
    if (event.stream != nullptr) finish(event.stream, event.until);
    return outcome();
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned) {
    CALL;
    Stream *stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    Event event = *(Event *)awaited;
    if (event.stream != nullptr && event.stream != stream)
        queue_attempt(stream, [=] { return advance(event.stream, event.until); });
    return CUDA_SUCCESS;
}

// Memory. Of size 0, the pools that tensors are allocated from give no address; cuMemAlloc gives an error.

CUresult cuMemAlloc(CUdeviceptr *place, size_t bytes) {
    CALL_IN_CONTEXT;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *place = allocate(current->device, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr place) {
    CALL_IN_CONTEXT;
    Device *device = owner(place);
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    finish_all(device);
    give_back(device, place);
    return outcome();
}

CUresult cuMemAllocAsync(CUdeviceptr *place, size_t bytes, CUstream handle) {
    CALL;
    STREAM(handle);
    *place = bytes == 0 ? 0 : allocate(stream->device, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr place, CUstream handle) {
    CALL;
    if (place == 0) return CUDA_SUCCESS;
    Stream *stream = stream_of(handle);
    Device *device = owner(place);
    if (stream == nullptr || device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    queue(stream, [=] { give_back(device, place); });
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **place, size_t bytes, unsigned) {
    CALL_IN_CONTEXT;
    *place = malloc(bytes);
    memset(*place, 0xff, bytes);
    pinned[(uintptr_t)*place] = bytes;
    return CUDA_SUCCESS;
}

// The memory itself is kept, for whatever still reads from it, and finds nothing there.
CUresult cuMemFreeHost(void *place) {
    CALL;
    memset(place, 0xff, pinned[(uintptr_t)place]);
    pinned.erase((uintptr_t)place);
    return CUDA_SUCCESS;
}

// From pinned memory when it is the copy's turn; other memory is read before the call returns.
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
    CALL;
    STREAM(handle);
    Device *device = stream->device;
    std::shared_ptr<std::vector<char>> kept;
    if (!is_pinned(from, bytes))
        kept = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    queue_named(stream, "a copy", [=] {
        if (may_access(device, to, bytes, Access::write, "a copy to the GPU"))
            memcpy((void *)to, kept == nullptr ? from : kept->data(), bytes);
    });
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
    CALL;
    STREAM(handle);
    Device *device = stream->device;
    if (idle()) memset(to, 0, bytes);
    queue_named(stream, "a copy", [=] {
        if (may_access(device, from, bytes, Access::read, "a copy to the host")) memcpy(to, (const void *)from, bytes);
    });
    if (!is_pinned(to, bytes)) finish(stream, stream->queued);
    return outcome();
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
    CALL;
    STREAM(handle);
    Device *device = stream->device;
    if (bytes == 0) return CUDA_SUCCESS;
    if (owner(to) != device || owner(from) != device) {
        simulated_fault("a copy on GPU %d is of another's memory", device->number);
        return CUDA_ERROR_INVALID_VALUE;
    }
    queue_named(stream, "a copy", [=] { copy(device, to, device, from, bytes); });
    return CUDA_SUCCESS;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream handle) {
    CALL;
    Stream *stream = stream_of(handle);
    Device *target = ((Context *)there)->device, *source = ((Context *)here)->device;
    if (owner(to) != target || owner(from) != source) {
        simulated_fault("a copy between GPUs: memory is not where its context says");
        return CUDA_ERROR_INVALID_VALUE;
    }
    queue_named(stream, "a copy between GPUs", [=] { copy(target, to, source, from, bytes); });
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr place, unsigned char value, size_t bytes, CUstream handle) {
    CALL;
    STREAM(handle);
    Device *device = stream->device;
    queue_named(stream, "a setting of memory", [=] {
        if (may_access(device, place, bytes, Access::write, "a setting of memory")) memset((void *)place, value, bytes);
    });
    return CUDA_SUCCESS;
}

// Kernels

CUresult cuModuleLoadData(CUmodule *module, const void *text) {
    CALL_IN_CONTEXT;
    *module = (CUmodule)load(current->device, (const char *)text);
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return cuModuleLoadData(module, text.str().c_str());
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CALL_IN_CONTEXT;
    return find((Module *)module, name, (Kernel **)function);
}

CUresult cuLaunchKernel(CUfunction function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                        unsigned threads_y, unsigned threads_z, unsigned shared, CUstream handle, void **given, void **) {
    CALL;
    STREAM(handle);
    const Kernel *kernel = (Kernel *)function;
    Shape shape{{blocks_x, blocks_y, blocks_z}, {threads_x, threads_y, threads_z}, shared};
    uint64_t blocks = (uint64_t)blocks_x * blocks_y * blocks_z, threads = (uint64_t)threads_x * threads_y * threads_z;
    if (blocks == 0 || threads == 0 || threads > 1024 || blocks_y > 65535 || blocks_z > 65535 ||
        shared + kernel->shared > 48 << 10) {
        simulated_fault("%s: launched as no GPU launches", kernel->name.c_str());
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto arguments = std::make_shared<std::vector<char>>(kernel->bytes + 16);
    for (int i = 0; i < kernel->arguments; i++)
        memcpy(arguments->data() + kernel->starts[i], given[i], kernel->sizes[i]);
    Device *device = stream->device;
    queue_named(stream, kernel->name,
                [=] { run(device, *kernel, shape, arguments->data()); });
    return CUDA_SUCCESS;
}
}
