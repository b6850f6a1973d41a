//! Times of a GPU's work, measured on the GPU.

use std::sync::Arc;
use std::time::Duration;

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags};

use harness::report::trace::DeviceClock;

/// The most marks of a clock: each is an event that the driver keeps until the end of the run.
const MOST_MARKS: usize = 100_000;

/// A clock whose marks are CUDA events on a GPU's stream.
#[derive(Debug)]
pub(super) struct EventClock {
    stream: Arc<CudaStream>,
    began: CudaEvent,
    marks: Vec<CudaEvent>,
}

impl EventClock {
    /// Waits for the GPU's stream, and starts a clock. Returns `None` if the GPU fails: the next operation on the GPU
    /// reports the error.
    pub(super) fn new(gpu: &CudaDevice) -> Option<Self> {
        let stream = gpu.cuda_stream();
        stream.synchronize().ok()?;
        let began = event(&stream)?;
        Some(Self { stream, began, marks: Vec::new() })
    }
}

impl DeviceClock for EventClock {
    fn mark(&mut self) -> Option<usize> {
        if self.marks.len() == MOST_MARKS {
            return None;
        }
        self.marks.push(event(&self.stream)?);
        Some(self.marks.len() - 1)
    }

    fn times(&mut self) -> Vec<Duration> {
        let times = self.marks.iter().map_while(|mark| self.began.elapsed_ms(mark).ok());
        times.map(|ms| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3)).collect()
    }
}

/// Records an event with a time stamp.
fn event(stream: &Arc<CudaStream>) -> Option<CudaEvent> {
    stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).ok()
}
