// libnccl: sums and broadcasts between ranks that are threads of one process, with a GPU each.
//
// A rank's part waits in its stream until all ranks have come to theirs. Whoever waits does the others' work before it, as
// far as that has been queued.

#include <nccl.h>

#include <map>
#include <memory>
#include <string>

#include "numbers.h"
#include "simulated.h"

struct Part {
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    // -1: a sum.
    int root;
    int device;
    void *stream;
    // How much of the stream's work comes before.
    unsigned long before;
    bool arrived = false;
};

struct Group {
    int size;
    std::map<int, int> devices;
    std::map<unsigned long, std::map<int, Part>> pending;
    unsigned long done = 0;
    bool refused = false;
};

struct ncclComm {
    std::shared_ptr<Group> group;
    int rank, device;
    unsigned long next = 0;
    std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
};

static std::map<std::string, std::shared_ptr<Group>> groups;

static size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8: case ncclUint8: return 1;
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclFloat64: case ncclInt64: case ncclUint64: return 8;
        default: return 4;
    }
}

static Type float_of(ncclDataType_t type) {
    switch (type) {
        case ncclFloat16: return Type::f16;
        case ncclBfloat16: return Type::bf16;
        case ncclFloat64: return Type::f64;
        default: return Type::f32;
    }
}

// What has arrived from all ranks is computed. Every partial sum is rounded to the type, in the order of the ranks.
static void perform(std::map<int, Part> &parts) {
    const Part &first = parts.at(0);
    const size_t bytes = first.count * size_of(first.type);
    for (auto &[rank, part] : parts) {
        bool sends = part.root < 0 || part.root == rank;
        if (part.count != first.count || part.type != first.type || part.root != first.root) {
            simulated_fault("NCCL: ranks call different things");
            return;
        }
        if (sends && !simulated_access(part.device, part.from, bytes, Access::read, "NCCL")) return;
    }
    std::vector<char> result(bytes);
    memcpy(result.data(), parts.at(std::max(first.root, 0)).from, bytes);
    for (auto &[rank, part] : parts) {
        if (first.root >= 0 || rank == 0) continue;
        Type type = float_of(first.type);
        for (size_t i = 0; i < first.count; i++)
            put<double>(result.data(), type, i, get<double>(result.data(), type, i) + get<double>(part.from, type, i));
    }
    for (auto &[rank, part] : parts)
        if (simulated_access(part.device, part.to, bytes, Access::write, "NCCL")) memcpy(part.to, result.data(), bytes);
}

static bool all_arrived(const Group &group, const std::map<int, Part> &parts) {
    size_t arrived = 0;
    for (auto &[rank, part] : parts) arrived += part.arrived;
    return arrived == (size_t)group.size;
}

static ncclResult_t queue(ncclComm *comm, Part part) {
    if (!simulated_ready(comm->device, part.stream, "NCCL")) return ncclInvalidUsage;
    simulated_lock();
    auto group = comm->group;
    auto aborted = comm->aborted;
    unsigned long number = comm->next++;
    int rank = comm->rank;
    part.device = comm->device;
    part.before = simulated_queued(part.stream) + 1;
    group->pending[number][rank] = part;
    simulated_queue_attempt(part.stream, part.root < 0 ? "ncclDevKernel_AllReduce" : "ncclDevKernel_Broadcast", [=] {
        if (group->done > number || *aborted) return true;
        auto &parts = group->pending[number];
        parts[rank].arrived = true;
        for (int other = 0; other < group->size && group->done <= number; other++) {
            auto found = parts.find(other);
            if (found == parts.end() || found->second.arrived) continue;
            auto [stream, before] = std::pair(found->second.stream, found->second.before);
            simulated_advance(stream, before);
        }
        if (group->done > number) return true;
        if (!all_arrived(*group, parts)) return false;
        perform(parts);
        group->done = number + 1;
        group->pending.erase(number);
        return true;
    });
    simulated_unlock();
    return ncclSuccess;
}

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int drawn = 0;
    memset(id, 0, sizeof *id);
    simulated_lock();
    snprintf(id->internal, sizeof id->internal, "%d", ++drawn);
    simulated_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    int device = simulated_current();
    if (device < 0) return ncclUnhandledCudaError;
    simulated_lock();
    auto &known = groups[id.internal];
    if (known == nullptr) known = std::make_shared<Group>(Group{size, {}, {}});
    auto group = known;
    for (auto [other, there] : group->devices) group->refused |= there == device;
    group->devices[rank] = device;
    while ((int)group->devices.size() < size && !group->refused) simulated_pause();
    bool refused = group->refused;
    simulated_unlock();
    if (refused) return ncclInvalidUsage;
    *comm = new ncclComm{group, rank, device};
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    simulated_lock();
    *comm->aborted = true;
    simulated_unlock();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
    bool is_float = type == ncclFloat16 || type == ncclBfloat16 || type == ncclFloat32 || type == ncclFloat64;
    if (op != ncclSum || !is_float) return ncclInvalidArgument;
    return queue(comm, Part{from, to, count, type, -1, 0, stream, 0});
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return queue(comm, Part{from, to, count, type, root, 0, stream, 0});
}
}
