// Devices' memory. Each byte has a state: nobody reads what was not written, or touches what is not allocated.
//
// Every device has a range of addresses of its own, so that a kernel which reaches into another's is found out. Memory
// that was given back is used again as late as possible, so that whoever still uses it is found out, too.

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu.h"

std::vector<Device *> devices;

// What new memory, and memory that was given back, holds: NaN in every type of floats.
static constexpr int POISON = 0xff;
// Blocks of a size that lie unused before one is used again.
static constexpr size_t RESTING = 8;

static void *addresses(uint64_t bytes) {
    void *place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) {
        perror("simulated GPU: no room for a GPU's memory");
        abort();
    }
    return place;
}

void open_devices(int count) {
    for (int number = 0; number < count; number++) {
        auto *memory = static_cast<char *>(addresses(MEMORY));
        auto *device = new Device{number, memory, static_cast<uint8_t *>(addresses(MEMORY))};
        device->own = new_stream(device);
        devices.push_back(device);
    }
}

Device *owner(uint64_t place) {
    for (Device *device : devices)
        if (place - (uint64_t)device->memory < MEMORY) return device;
    return nullptr;
}

// A block of at least so many bytes, and some between it and the next.
static uint64_t block(size_t bytes) { return (bytes + 511) / 512 * 512 + 512; }

static void mark(Device *device, uint64_t place, size_t bytes, uint8_t state) {
    if (idle()) return;
    memset(device->memory + place, POISON, bytes);
    memset(device->state + place, state, bytes);
}

uint64_t allocate(Device *device, size_t bytes) {
    auto &resting = device->given_back[block(bytes)];
    uint64_t place = device->top;
    if (resting.size() > RESTING) {
        place = resting.front();
        resting.pop_front();
    } else {
        device->top += block(bytes);
        if (device->top > MEMORY) {
            fputs("simulated GPU: out of addresses\n", stderr);
            abort();
        }
    }
    mark(device, place, bytes, ALLOCATED);
    device->allocated[place] = bytes;
    return (uint64_t)device->memory + place;
}

void give_back(Device *device, uint64_t address) {
    uint64_t place = address - (uint64_t)device->memory;
    auto found = device->allocated.find(place);
    if (found == device->allocated.end()) {
        simulated_fault("memory is freed that is not allocated");
        return;
    }
    size_t bytes = found->second;
    device->allocated.erase(found);
    mark(device, place, bytes, NOT_ALLOCATED);
    device->given_back[block(bytes)].push_back(place);
}

bool may_access(Device *device, uint64_t address, size_t bytes, Access access, const char *who) {
    if (bytes == 0) return true;
    uint64_t place = address - (uint64_t)device->memory;
    if (place > MEMORY || bytes > MEMORY - place) {
        simulated_fault("%s: %zu bytes that are not in GPU %d's memory", who, bytes, device->number);
        return false;
    }
    uint8_t *states = device->state + place;
    auto *wrong = (uint8_t *)memchr(states, NOT_ALLOCATED, bytes);
    if (wrong == nullptr && access == Access::read) wrong = (uint8_t *)memchr(states, ALLOCATED, bytes);
    if (wrong != nullptr) {
        const char *what = *wrong == NOT_ALLOCATED ? "is not allocated" : "nobody wrote";
        simulated_fault("%s: of %zu bytes, byte %zu is memory that %s", who, bytes, (size_t)(wrong - states), what);
        return false;
    }
    if (access == Access::write) memset(states, WRITTEN, bytes);
    return true;
}

bool simulated_access(int device, const void *place, size_t bytes, Access access, const char *who) {
    return may_access(devices[device], (uint64_t)place, bytes, access, who);
}

// Memory that nobody wrote may be copied, and stays that.
void copy(Device *to_device, uint64_t to, Device *from_device, uint64_t from, size_t bytes) {
    uint64_t source = from - (uint64_t)from_device->memory, target = to - (uint64_t)to_device->memory;
    if (memchr(from_device->state + source, NOT_ALLOCATED, bytes) != nullptr) {
        simulated_fault("a copy reads memory that is not allocated");
        return;
    }
    if (!may_access(to_device, to, bytes, Access::write, "a copy")) return;
    memmove((void *)to, (const void *)from, bytes);
    memmove(to_device->state + target, from_device->state + source, bytes);
}
