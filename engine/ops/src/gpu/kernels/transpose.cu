// A matrix [rows, columns] with its axes exchanged. Threads write side by side, and read from far apart: for small ones.

KERNEL transpose(Count rows, Count columns, const Stored *x, Stored *y) {
    FOR_EACH(i, rows * columns) y[i] = x[i % rows * columns + i / rows];
}
