// What cuBLAS and cuDNN are asked through: it belongs to the GPU whose context was current when it was made.

#pragma once
#include "simulated.h"

struct Handle {
    void *stream = nullptr;
    int device = simulated_current();

    // Whether something may be queued on its stream.
    bool ready(const char *who) const { return simulated_ready(device, stream, who); }
};

// Makes one; false where no context is current.
template <class Opaque>
bool open(Opaque *handle) {
    if (simulated_current() < 0) return false;
    *handle = (Opaque) new Handle;
    return true;
}
