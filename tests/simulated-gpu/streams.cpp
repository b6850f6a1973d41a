// Streams. Nothing is done before somebody waits for it: work is done as late as it may be, and so whatever
// relies on an order that nobody made goes wrong here, every time.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "gpu.h"

thread_local Context *current = nullptr;
static void (*told)(const Done &) = nullptr;

Stream *stream_of(CUstream handle) {
    if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) return (Stream *)handle;
    return current == nullptr ? nullptr : current->device->own;
}

Stream *new_stream(Device *device) {
    static unsigned streams = 0;
    auto *stream = new Stream{device, ++streams};
    device->streams.insert(stream);
    return stream;
}

// With SIMULATED_GPU_EAGER work is done at once where it can be: what then goes right, and late does not, lacks an order.
void queue_attempt(Stream *stream, const Attempt &attempt) {
    static const bool eager = *setting("SIMULATED_GPU_EAGER", "") != 0;
    stream->work.push_back(attempt);
    stream->queued++;
    if (eager) advance(stream, stream->queued);
}

// It succeeds at once.
static Attempt attempt_of(const Work &work) {
    return [=] {
        work();
        return true;
    };
}

void queue(Stream *stream, const Work &work) {
    if (idle())
        work();
    else
        queue_attempt(stream, attempt_of(work));
}

uint64_t simulated_time() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void simulated_tell(void (*whom)(const Done &)) {
    Lock lock;
    told = whom;
}

// Queues it, and tells of it: it takes from when its stream first comes to it until it is done.
static void queue_deed_attempt(Stream *stream, const Deed &deed, const Attempt &attempt) {
    if (idle()) return;
    auto start = std::make_shared<uint64_t>(0);
    queue_attempt(stream, [=] {
        if (*start == 0) *start = simulated_time();
        if (!attempt()) return false;
        if (told != nullptr) told({deed, stream->device->number, stream->number, *start, simulated_time()});
        return true;
    });
}

void queue_deed(Stream *stream, const Deed &deed, const Work &work) {
    queue_deed_attempt(stream, deed, attempt_of(work));
}

bool advance(Stream *stream, unsigned long until) {
    while (stream->done < until) {
        if (stream->at_work || stream->work.empty()) return false;
        stream->at_work = true;
        bool done = faulty || stream->work.front()();
        stream->at_work = false;
        if (!done) return false;
        stream->work.pop_front();
        stream->done++;
    }
    return true;
}

void finish(Stream *stream, unsigned long until) {
    while (!advance(stream, until)) simulated_pause();
}

void finish_all(Device *device) {
    auto streams = device->streams;
    for (Stream *stream : streams) finish(stream, stream->queued);
}

int simulated_current() { return current == nullptr ? -1 : current->device->number; }

int simulated_device_of(const void *stream) {
    Stream *found = stream_of((CUstream)stream);
    return found == nullptr ? -1 : found->device->number;
}

bool simulated_ready(int device, const void *stream, const char *who) {
    if (simulated_current() == device && simulated_device_of(stream) == device) return true;
    simulated_fault("%s: GPU %d, a stream of GPU %d, in a context of GPU %d", who, device, simulated_device_of(stream),
                    simulated_current());
    return false;
}

void simulated_queue(void *stream, const Work &work) {
    Lock lock;
    queue_deed(stream_of((CUstream)stream), {Deed::KERNEL, "a kernel of a library", 0, 0}, work);
}

void simulated_queue_attempt(void *stream, const char *name, const Attempt &attempt) {
    Lock lock;
    queue_deed_attempt(stream_of((CUstream)stream), {Deed::KERNEL, name, 0, 0}, attempt);
}

unsigned long simulated_queued(void *stream) { return stream_of((CUstream)stream)->queued; }

bool simulated_advance(void *stream, unsigned long until) { return advance(stream_of((CUstream)stream), until); }
