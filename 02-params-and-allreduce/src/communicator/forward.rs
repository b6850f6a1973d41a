//! A communicator that wraps another passes most methods on.

/// Passes methods on to the communicator in a field. Stands in an `impl Communicator`:
/// `forward!(line: rank, world_size, device);`.
#[macro_export]
macro_rules! forward {
    ($line:tt: $($method:ident),+) => {
        $($crate::forward!(@$method $line);)+
    };
    (@rank $line:tt) => {
        fn rank(&self) -> usize {
            self.$line.rank()
        }
    };
    (@world_size $line:tt) => {
        fn world_size(&self) -> usize {
            self.$line.world_size()
        }
    };
    (@device $line:tt) => {
        fn device(&self) -> &candle_core::Device {
            self.$line.device()
        }
    };
    (@send $line:tt) => {
        fn send(
            &self,
            to: usize,
            tensor: &candle_core::Tensor,
        ) -> std::result::Result<(), $crate::communicator::Error> {
            self.$line.send(to, tensor)
        }
    };
    (@recv $line:tt) => {
        fn recv(
            &self,
            from: usize,
            shape: &candle_core::Shape,
            dtype: candle_core::DType,
        ) -> std::result::Result<candle_core::Tensor, $crate::communicator::Error> {
            self.$line.recv(from, shape, dtype)
        }
    };
    (@background $line:tt) => {
        fn background(
            &self,
        ) -> std::result::Result<
            $crate::communicator::SharedCommunicator,
            $crate::communicator::Error,
        > {
            self.$line.background()
        }
    };
    (@shares_memory $line:tt) => {
        fn shares_memory(&self) -> bool {
            self.$line.shares_memory()
        }
    };
}
