// Streams. Nothing is done before somebody waits for it: work is done as late as it may be, and so whatever
// relies on an order that nobody made goes wrong here, every time.

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "gpu.h"

thread_local Context *current = nullptr;

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

// With SIMULATED_GPU_LOG=FILE every kernel, copy and setting of memory that was done is a line of that file.
static void log_done(const std::string &name) {
    static const char *path = setting("SIMULATED_GPU_LOG", "");
    if (*path == 0) return;
    static FILE *log = fopen(path, "w");
    if (log == nullptr) {
        perror(path);
        abort();
    }
    fprintf(log, "%s\n", name.c_str());
    fflush(log);
}

static void queue_named_attempt(Stream *stream, const std::string &name, const Attempt &attempt) {
    if (idle()) return;
    queue_attempt(stream, [=] {
        if (!attempt()) return false;
        log_done(name);
        return true;
    });
}

void queue_named(Stream *stream, const std::string &name, const Work &work) {
    queue_named_attempt(stream, name, attempt_of(work));
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
    queue_named(stream_of((CUstream)stream), "a kernel of a library", work);
}

void simulated_queue_attempt(void *stream, const char *name, const Attempt &attempt) {
    Lock lock;
    queue_named_attempt(stream_of((CUstream)stream), name, attempt);
}

unsigned long simulated_queued(void *stream) { return stream_of((CUstream)stream)->queued; }

bool simulated_advance(void *stream, unsigned long until) { return advance(stream_of((CUstream)stream), until); }
