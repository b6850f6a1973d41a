//! A communicator that wraps another passes most methods on.

/// Passes methods on to the communicator in a field. An `impl Communicator` contains
/// `forward!(inner: rank, world_size, device);`.
#[macro_export]
macro_rules! forward {
    ($inner:tt: $($method:ident),+) => {
        $($crate::forward!(@$method $inner);)+
    };
    (@rank $inner:tt) => { $crate::forward!($inner, rank() -> usize); };
    (@world_size $inner:tt) => { $crate::forward!($inner, world_size() -> usize); };
    (@device $inner:tt) => { $crate::forward!($inner, device() -> &candle_core::Device); };
    (@shares_memory $inner:tt) => { $crate::forward!($inner, shares_memory() -> bool); };
    (@send $inner:tt) => {
        $crate::forward!($inner, send(to: usize, tensor: &candle_core::Tensor) -> Result<()>);
    };
    (@send_shared $inner:tt) => {
        $crate::forward!($inner, send_shared(to: usize, tensor: &candle_core::Tensor) -> Result<()>);
    };
    (@recv $inner:tt) => {
        $crate::forward!($inner, recv(
            from: usize, shape: &candle_core::Shape, dtype: candle_core::DType
        ) -> Result<candle_core::Tensor>);
    };
    (@background $inner:tt) => {
        $crate::forward!($inner, background() -> Result<$crate::communicator::SharedCommunicator>);
    };
    (@world_rank $inner:tt) => { $crate::forward!($inner, world_rank(rank: usize) -> usize); };
    ($inner:tt, $method:ident($($of:ident: $type:ty),*) -> Result<$found:ty>) => {
        fn $method(
            &self,
            $($of: $type),*
        ) -> std::result::Result<$found, $crate::communicator::Error> {
            self.$inner.$method($($of),*)
        }
    };
    ($inner:tt, $method:ident($($of:ident: $type:ty),*) -> $found:ty) => {
        fn $method(&self, $($of: $type),*) -> $found {
            self.$inner.$method($($of),*)
        }
    };
}
