// libcupti: what was done when, in buffers of records.

#include <cupti.h>

#include <cstring>
#include <deque>
#include <thread>

#include "simulated.h"

static_assert((int)Deed::COPY == CUPTI_ACTIVITY_KIND_MEMCPY && (int)Deed::SET == CUPTI_ACTIVITY_KIND_MEMSET);
static_assert((int)Deed::KERNEL == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert((int)Deed::COPY_BETWEEN_GPUS == CUPTI_ACTIVITY_KIND_MEMCPY2);

static CUpti_BuffersCallbackRequestFunc requested;
static CUpti_BuffersCallbackCompleteFunc completed;
static bool wanted[CUPTI_ACTIVITY_KIND_COUNT];
static std::deque<Done> done;

static void keep(const Done &one) {
    if (wanted[one.deed.kind]) done.push_back(one);
}

// The types of CUDA 13.0.
static size_t length(int kind) {
    switch (kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
        case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
        case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
        default: return sizeof(CUpti_ActivityMemset4);
    }
}

template <typename Record>
static Record *begun(const Done &one, uint8_t *place) {
    memset(place, 0, sizeof(Record));
    auto *record = (Record *)place;
    record->kind = (CUpti_ActivityKind)one.deed.kind;
    record->start = one.start, record->end = one.end;
    record->deviceId = one.device, record->streamId = one.stream;
    return record;
}

static void write(const Done &one, uint8_t *place) {
    const Deed &deed = one.deed;
    if (deed.kind == Deed::KERNEL) {
        begun<CUpti_ActivityKernel10>(one, place)->name = deed.name;
    } else if (deed.kind == Deed::SET) {
        begun<CUpti_ActivityMemset4>(one, place)->bytes = deed.bytes;
    } else if (deed.kind == Deed::COPY) {
        auto *record = begun<CUpti_ActivityMemcpy6>(one, place);
        record->copyKind = deed.way, record->bytes = deed.bytes;
    } else {
        auto *record = begun<CUpti_ActivityMemcpyPtoP4>(one, place);
        record->copyKind = deed.way, record->bytes = deed.bytes;
    }
}

static bool hand_over(std::deque<Done> &now) {
    while (!now.empty()) {
        uint8_t *buffer = nullptr;
        size_t size = 0, most = 0, filled = 0;
        requested(&buffer, &size, &most);
        if (buffer == nullptr || size < sizeof(CUpti_ActivityKernel10)) return false;
        for (; !now.empty() && filled + length(now.front().deed.kind) <= size; now.pop_front()) {
            write(now.front(), buffer + filled);
            filled += length(now.front().deed.kind);
        }
        completed(nullptr, 0, buffer, size, filled);
    }
    return true;
}

extern "C" {
CUptiResult cuptiGetTimestamp(uint64_t *time) {
    *time = simulated_time();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc first,
                                           CUpti_BuffersCallbackCompleteFunc second) {
    if (first == nullptr || second == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
    requested = first, completed = second;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (requested == nullptr || kind < 0 || kind >= CUPTI_ACTIVITY_KIND_COUNT) return CUPTI_ERROR_INVALID_KIND;
    wanted[kind] = true;
    simulated_tell(keep);
    return CUPTI_SUCCESS;
}

// Buffers are handed over in a thread of this library's.
CUptiResult cuptiActivityFlushAll(uint32_t) {
    std::deque<Done> now;
    simulated_lock();
    now.swap(done);
    simulated_unlock();
    bool refused = false;
    std::thread([&] { refused = !hand_over(now); }).join();
    return refused ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped) {
    *dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t filled, CUpti_Activity **record) {
    uint8_t *next = *record == nullptr ? buffer : (uint8_t *)*record + length((*record)->kind);
    if (next >= buffer + filled) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult, const char **text) {
    *text = "an error of the simulated CUPTI's";
    return CUPTI_SUCCESS;
}
}
