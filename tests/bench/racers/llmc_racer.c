/* llmc_racer.c - steps of llm.c's CPU program (train_gpt2.c of github.com/karpathy/llm.c) on random weights,
 * its two matrix products by OpenBLAS.
 *
 * Built by gpt2_race_bench.sh with the user's copy of train_gpt2.c, whose definitions of matmul_forward and
 * matmul_backward were renamed, so that those below are called. Its AdamW has one thread: here it is by all.
 * Everything else is llm.c's. Weights are made as gpt2_build_from_checkpoint makes them from a file, with
 * random numbers. Prints "seconds-of-a-step peak-KiB", the median of STEPS after one that warms up:
 * llmc_racer BATCH TOKENS STEPS THREADS; with one thread the time is the processor's. */
void matmul_forward(float *out, const float *inp, const float *weight, const float *bias, int B, int T, int C,
                    int OC);
void matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                     const float *weight, int B, int T, int C, int OC);
#include LLMC_SOURCE

#include <sys/resource.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112, STEPS_MAX = 64 };
void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

void matmul_forward(float *out, const float *inp, const float *weight, const float *bias, int B, int T, int C,
                    int OC)
{
    if (bias != NULL) {
#pragma omp parallel for
        for (int row = 0; row < B * T; row++)
            memcpy(out + (size_t)row * OC, bias, OC * sizeof *out);
    }
    cblas_sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, B * T, OC, C, 1.0f, inp, C, weight, C,
                bias != NULL ? 1.0f : 0.0f, out, OC);
}

void matmul_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                     const float *weight, int B, int T, int C, int OC)
{
    cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, B * T, C, OC, 1.0f, dout, OC, weight, C, 1.0f, dinp, C);
    cblas_sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, OC, C, B * T, 1.0f, dout, OC, inp, C, 1.0f, dweight, C);
    if (dbias == NULL)
        return;
#pragma omp parallel for
    for (int block = 0; block < OC; block += 64)
        for (int row = 0; row < B * T; row++)
            for (int o = block; o < OC && o < block + 64; o++)
                dbias[o] += dout[(size_t)row * OC + o];
}

/* What llm.c's gpt2_update does, by all threads. */
static void adamw(GPT2 *model, float rate, float beta1, float beta2, float eps, float decay, int t)
{
    if (model->m_memory == NULL) {
        model->m_memory = calloc(model->num_parameters, sizeof(float));
        model->v_memory = calloc(model->num_parameters, sizeof(float));
    }
    float *p = model->params_memory, *g = model->grads_memory, *m = model->m_memory, *v = model->v_memory;
    const float first = 1.0f / (1.0f - powf(beta1, t)), second = 1.0f / (1.0f - powf(beta2, t));
#pragma omp parallel for simd
    for (size_t i = 0; i < model->num_parameters; i++) {
        m[i] = beta1 * m[i] + (1.0f - beta1) * g[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
        p[i] -= rate * (m[i] * first / (sqrtf(v[i] * second) + eps) + decay * p[i]);
    }
}

static void random_model(GPT2 *model)
{
    uint64_t state = 1337;
    memset(model, 0, sizeof *model);
    model->config = (GPT2Config){.max_seq_len = 1024,
                                 .vocab_size = 50257,
                                 .padded_vocab_size = 50304,
                                 .num_layers = 12,
                                 .num_heads = 12,
                                 .channels = 768};
    fill_in_parameter_sizes(model->param_sizes, model->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        model->num_parameters += model->param_sizes[i];
    model->params_memory = malloc_and_point_parameters(&model->params, model->param_sizes);
    for (size_t i = 0; i < model->num_parameters; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        model->params_memory[i] = ((float)(state >> 40) * 0x1p-24f - 0.5f) * 0.07f;
    }
    model->mean_loss = -1.0f;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    const int B = atoi(argv[1]), T = atoi(argv[2]),
              steps = atoi(argv[3]) < STEPS_MAX ? atoi(argv[3]) : STEPS_MAX;
    int *tokens = mallocCheck(((size_t)B * T + 1) * sizeof *tokens);
    for (int i = 0; i <= B * T; i++)
        tokens[i] = (int)((unsigned)i * 2654435761u % 50257u);
    const clockid_t clock = atoi(argv[4]) == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    GPT2 model;
    random_model(&model);
    double seconds[STEPS_MAX];
    fprintf(stderr, "llm.c: %d x %d\n", B, T);
    for (int step = -1; step < steps; step++) {
        struct timespec start, end;
        clock_gettime(clock, &start);
        gpt2_forward(&model, tokens, tokens + 1, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        adamw(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 2);
        clock_gettime(clock, &end);
        if (step >= 0)
            seconds[step] =
                (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    qsort(seconds, steps, sizeof *seconds, by_value);
    fprintf(stderr, "llm.c: loss %g\n", model.mean_loss);
    printf("race %.6f %ld\n", seconds[steps / 2], usage.ru_maxrss);
    return 0;
}
