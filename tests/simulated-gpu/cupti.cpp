// libcupti: what was done when, in buffers of records.

#include <algorithm>
#include <cstring>
#include <deque>

#include "simulated.h"

enum Result { SUCCESS = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12 };

// What records begin with. A kernel's record is as long as version 9's.
struct KernelRecord {
    int kind;
    uint8_t before[12];
    uint64_t start, end, completed;
    uint32_t device, context, stream, shape[10], correlation;
    int64_t grid;
    const char *name;
    uint8_t rest[104];
};
struct MemoryRecord {
    int kind;
    uint8_t way, before[3];
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint8_t rest[40];
};

typedef void (*Requested)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*Completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t filled);
static Requested requested;
static Completed completed;
static bool wanted[64];
static std::deque<Done> done;

static void keep(const Done &one) {
    if (wanted[one.deed.kind]) done.push_back(one);
}

static size_t length(int kind) { return kind == Deed::KERNEL ? sizeof(KernelRecord) : sizeof(MemoryRecord); }

static void write(const Done &one, uint8_t *place) {
    const Deed &deed = one.deed;
    memset(place, 0, length(deed.kind));
    if (deed.kind == Deed::KERNEL) {
        auto *record = (KernelRecord *)place;
        record->kind = deed.kind, record->name = deed.name;
        record->start = one.start, record->end = one.end;
        record->device = one.device, record->stream = one.stream;
    } else {
        auto *record = (MemoryRecord *)place;
        record->kind = deed.kind, record->way = deed.way, record->bytes = deed.bytes;
        record->start = one.start, record->end = one.end;
        record->device = one.device, record->stream = one.stream;
    }
}

extern "C" {
int cuptiGetTimestamp(uint64_t *time) {
    *time = simulated_time();
    return SUCCESS;
}

int cuptiActivityRegisterCallbacks(Requested first, Completed second) {
    if (first == nullptr || second == nullptr) return INVALID_PARAMETER;
    requested = first, completed = second;
    return SUCCESS;
}

int cuptiActivityEnable(int kind) {
    if (requested == nullptr || kind < 0 || kind >= 64) return INVALID_PARAMETER;
    wanted[kind] = true;
    simulated_tell(keep);
    return SUCCESS;
}

int cuptiActivityFlushAll(uint32_t) {
    std::deque<Done> now;
    simulated_lock();
    now.swap(done);
    simulated_unlock();
    while (!now.empty()) {
        uint8_t *buffer = nullptr;
        size_t size = 0, most = 0, filled = 0;
        requested(&buffer, &size, &most);
        if (buffer == nullptr || size < sizeof(KernelRecord)) return INVALID_PARAMETER;
        for (; !now.empty() && filled + length(now.front().deed.kind) <= size; now.pop_front()) {
            write(now.front(), buffer + filled);
            filled += length(now.front().deed.kind);
        }
        completed(nullptr, 0, buffer, size, filled);
    }
    return SUCCESS;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t filled, int **record) {
    uint8_t *next = *record == nullptr ? buffer : (uint8_t *)*record + length(**record);
    if (next >= buffer + filled) return MAX_LIMIT_REACHED;
    *record = (int *)next;
    return SUCCESS;
}
}
