// GPUs as the simulated driver knows them.

#pragma once
#include <cuda.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "simulated.h"
#include "thread.h"

struct Stream;

struct Device {
    int number;
    char *memory;
    uint8_t *state;
    uint64_t top = 4096;
    // Sizes of what is allocated, and what was given back, by size; both by place.
    std::map<uint64_t, uint64_t> allocated;
    std::map<uint64_t, std::deque<uint64_t>> given_back;
    std::set<Stream *> streams;
    Stream *own;
};

struct Stream {
    Device *device;
    unsigned number;
    std::deque<Attempt> work;
    unsigned long queued = 0, done = 0;
    bool at_work = false;
};

// How far a stream had come, and when it came there.
struct Event {
    Stream *stream = nullptr;
    unsigned long until = 0;
    std::shared_ptr<uint64_t> time = std::make_shared<uint64_t>(0);
};

struct Context {
    Device *device;
};

// A kernel that has been translated and compiled.
struct Kernel {
    std::string name;
    void (*run)(char *, Thread *);
    int arguments, bytes, shared;
    const int *starts, *sizes;
    bool waits;
};

struct Lock {
    Lock() { simulated_lock(); }
    ~Lock() { simulated_unlock(); }
};

// state.cpp
extern bool faulty;
const char *setting(const char *name, const char *otherwise);
// With SIMULATED_GPU_IDLE nothing is computed or copied, and memory holds zeros: the time that a program then takes is the
// host's alone.
bool idle();

// memory.cpp
constexpr uint64_t MEMORY = 1ull << 38;
extern std::vector<Device *> devices;
void open_devices(int count);
Device *owner(uint64_t place);
uint64_t allocate(Device *device, size_t bytes);
void give_back(Device *device, uint64_t place);
bool may_access(Device *device, uint64_t place, size_t bytes, Access access, const char *who);
void copy(Device *to_device, uint64_t to, Device *from_device, uint64_t from, size_t bytes);

// streams.cpp
extern thread_local Context *current;
Stream *stream_of(CUstream handle);
Stream *new_stream(Device *device);
void queue(Stream *stream, const Work &work);
// Under the name that the log has for it.
void queue_named(Stream *stream, const std::string &name, const Work &work);
void queue_attempt(Stream *stream, const Attempt &attempt);
bool advance(Stream *stream, unsigned long until);
void finish(Stream *stream, unsigned long until);
void finish_all(Device *device);

// kernels.cpp
struct Module;
Module *load(Device *device, const std::string &text);
CUresult find(Module *module, const char *name, Kernel **found);

// launch.cpp
struct Shape {
    unsigned blocks[3], threads[3], shared;
};
void run(Device *device, const Kernel &kernel, const Shape &shape, char *arguments);
