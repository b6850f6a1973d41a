// The one lock, faults, and settings.
//
// One thread of the program is in the driver at a time: what runs on "GPUs" runs in whichever thread waits for it.

#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "gpu.h"

static std::mutex mutex;
static std::condition_variable changed;
static thread_local int depth = 0;

bool faulty = false;

const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value != nullptr && *value != 0 ? value : otherwise;
}

bool idle() {
    static const bool idle = *setting("SIMULATED_GPU_IDLE", "") != 0;
    return idle;
}

void simulated_lock() {
    if (depth++ == 0) mutex.lock();
}

void simulated_unlock() {
    if (depth == 1) changed.notify_all();
    if (--depth == 0) mutex.unlock();
}

void simulated_pause() {
    int held = depth;
    depth = 0;
    changed.notify_all();
    {
        std::unique_lock<std::mutex> lock(mutex, std::adopt_lock);
        changed.wait_for(lock, std::chrono::milliseconds(20));
        lock.release();
    }
    depth = held;
}

void simulated_fault(const char *format, ...) {
    faulty = true;
    va_list values;
    va_start(values, format);
    fputs("simulated GPU: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
}
