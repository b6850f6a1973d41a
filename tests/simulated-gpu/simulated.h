// What the simulated libraries (cuBLAS, cuDNN, cuRAND, NCCL) know of the simulated driver.

#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

// A piece of work, and one that may say false: not yet, ask again.
using Work = std::function<void()>;
using Attempt = std::function<bool()>;

enum class Access { read, write };

extern "C" {
// The number of the GPU whose context is current in this thread, and of a stream's; -1 where there is none.
int simulated_current();
int simulated_device_of(const void *stream);

// Whether they are of one GPU: a device, a stream, and the current context. If not, that is a fault.
bool simulated_ready(int device, const void *stream, const char *who);

// Queues work on a stream of the current context; what may have to wait, under a name.
void simulated_queue(void *stream, const Work &work);
void simulated_queue_attempt(void *stream, const char *name, const Attempt &attempt);

// The system's clock, in nanoseconds.
uint64_t simulated_time();

// The rest is for work, and for whoever has called simulated_lock.
void simulated_lock();
void simulated_unlock();

// How much has been queued on a stream so far; and does what it can of that much, and says whether all is done.
unsigned long simulated_queued(void *stream);
bool simulated_advance(void *stream, unsigned long until);

// Gives the lock away until something has been queued or done, or some time has passed.
void simulated_pause();

// Whether memory of a device may be read, or written, and from now on is.
bool simulated_access(int device, const void *place, size_t bytes, Access access, const char *who);

// Something that must not happen: from now on every call to the driver fails.
void simulated_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
}
