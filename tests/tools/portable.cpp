// Trains and measures the model that is compiled with it, and writes down all the bits that come
// out. Any CPU: a program by itself, which an emulator runs, too. See portable.py.
#include <stdio.h>

namespace {

template <class T> T *read(FILE *from, int64_t count) {
    T *values = static_cast<T *>(malloc(size_t(count) * sizeof(T) + 64));
    if (!values || fread(values, sizeof(T), size_t(count), from) != size_t(count)) abort();
    return values;
}

} // namespace

int main(int, char **names) {
    FILE *const from = fopen(names[1], "rb"), *const to = fopen(names[2], "wb");
    if (!from || !to) return 1;
    // tasks, numbers of a model, examples, numbers of an example, classes, key of the dropout
    const int64_t *sizes = read<int64_t>(from, 6);
    const int64_t tasks = sizes[0], row = sizes[1], examples = sizes[2], classes = sizes[4];
    const float *rule = read<float>(from, 3); // learning rate, momentum, decay
    const float *x = read<float>(from, examples * sizes[3]);
    const int64_t *y = read<int64_t>(from, examples);
    const float *start = read<float>(from, row);
    int64_t *clients = read<int64_t>(from, tasks), *first = read<int64_t>(from, tasks);
    int64_t *steps = read<int64_t>(from, tasks), *batches = read<int64_t>(from, tasks);
    const float **starts = static_cast<const float **>(malloc(size_t(tasks) * sizeof(void *)));
    const int64_t **picked = static_cast<const int64_t **>(malloc(size_t(tasks) * sizeof(void *)));
    float *rates = static_cast<float *>(malloc(size_t(tasks) * sizeof(float)));
    for (int64_t i = 0; i < tasks; i++) {
        starts[i] = start;
        picked[i] = read<int64_t>(from, steps[i] * batches[i]);
        rates[i] = rule[0];
    }
    float *models = static_cast<float *>(malloc(size_t(tasks * row) * sizeof(float)));
    uint8_t *finite = static_cast<uint8_t *>(calloc(size_t(tasks), 1));
    const SdfeelTasks asked{tasks, starts, nullptr, models, tasks, row, clients, first, steps,
                            batches, picked, x, y, uint64_t(sizes[5]), rates, rule[1], rule[2], finite};
    if (sdfeel_train(&asked, 1)) return 2;
    fwrite(models, sizeof(float), size_t(tasks * row), to);
    fwrite(finite, 1, size_t(tasks), to);
    double loss = 0;
    int64_t right = 0;
    float *outputs = static_cast<float *>(malloc(size_t(examples * classes) * sizeof(float)));
    const SdfeelMeasure measure{models, examples, x, y, examples, &loss, &right, outputs};
    if (sdfeel_measure(&measure, 1)) return 2;
    fwrite(&loss, sizeof loss, 1, to);
    fwrite(&right, sizeof right, 1, to);
    fwrite(outputs, sizeof(float), size_t(examples * classes), to);
    return fclose(to) ? 3 : sdfeel_fuses() ? 0 : 4;
}
