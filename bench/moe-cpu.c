/* How fast is a mixture of experts on a CPU device? Forward and backward of one layer's experts, with their router, in fp32: with frozen
 * weights (the gradient of the input alone), and trained whole. In turn with it the same layer by transformers' default (grouped_mm) in
 * PyTorch (bench/moe-cpu-peer.py), on the same weights and input, where build/venv is there (`make reference`; MOE_PEER names another
 * python). Results are compared, times are medians.
 *
 * usage: moe-cpu [threads [rounds]] */
#include "device/cpu/cpu.h"
#include "machine.h"
#include "model/moe.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 1024, HIDDEN = 1024, WIDE = 512, EXPERTS = 64, TOP = 8, MOST_ROUNDS = 64, LAYER = 1, RESULTS = 3 };
enum form { FROZEN, FULL, FORMS };
static const char *const form_name[] = {"frozen", "full"};

static void must(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "moe-cpu: %s\n", rh_error(rc));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- our layer ---- */

struct layer {
	struct rh_model_config config;
	struct rh_model *model;
	struct rh_device *device;
	char *base; /* of the device's memory: the block's weights, its gradients, then the arena */
	char *weights[3];
	float *gradient[3][2];
	struct rh_arena arena;
	struct rh_view x, dy, y, dx;
	struct rh_activations rows;
};

static const struct rh_block *block_of(const struct layer *layer)
{
	return &layer->model->block[layer->model->layer[LAYER].block[0]];
}

static int launch(void *sink, const struct rh_op *op)
{
	struct rh_device *device = sink;
	return device->ops->launch(device, RH_STREAM_COMPUTE, op);
}

static void layer_open(struct layer *layer, int threads)
{
	enum { ARENA = 1 << 30 };
	*layer = (struct layer){.config = {.family = rh_family_find("qwen3"),
	                                   .vocab_size = 64,
	                                   .hidden_size = HIDDEN,
	                                   .intermediate_size = WIDE,
	                                   .num_hidden_layers = 1,
	                                   .num_attention_heads = 1,
	                                   .num_key_value_heads = 1,
	                                   .head_dim = 64,
	                                   .rms_norm_eps = 1e-6,
	                                   .rope[0].theta = 10000,
	                                   .qk_norm = 1,
	                                   .experts = EXPERTS,
	                                   .experts_per_token = TOP,
	                                   .router_softmax = RH_ROUTER_OVER_CHOSEN}};
	struct rh_cpu_options options = {.threads = threads, .isa = rh_cpu_best_isa()};
	must(rh_model_create(&layer->config, RH_F32, NULL, &layer->model));
	must(rh_cpu_open(0, &options, &layer->device));
	int b = layer->model->layer[LAYER].block[0];
	int64_t bytes = rh_align_up(block_of(layer)->elements * 4, RH_ALIGN);
	void *base;
	must(layer->device->ops->reserve(layer->device, 2 * bytes + ARENA, &base));
	layer->weights[b] = layer->base = base;
	layer->gradient[b][0] = (float *)(void *)(layer->base + bytes);
	layer->arena = (struct rh_arena){layer->base + 2 * bytes, ARENA, 0, 0};
	struct rh_view *const hidden[] = {&layer->x, &layer->dy, &layer->y, &layer->dx};
	for (int i = 0; i < 4; i++)
		*hidden[i] = emit_take(&layer->arena, RH_F32, TOKENS, HIDDEN);
}

static void layer_close(struct layer *layer)
{
	layer->device->ops->close(layer->device);
	rh_model_destroy(layer->model);
}

/* Forward and backward once; seconds. */
static double layer_run(struct layer *layer, enum form form)
{
	int64_t mark = layer->arena.used;
	struct rh_emit emit = {.model = layer->model,
	                       .launch = launch,
	                       .sink = layer->device,
	                       .arena = &layer->arena,
	                       .shape = {.tokens = TOKENS},
	                       .weights = layer->weights,
	                       .gradient = layer->gradient};
	layer->model->block[layer->model->layer[LAYER].block[0]].trainable = form == FULL;
	struct emit_table table = {.has_backward = 1};
	double start = now();
	half_experts.declare(&emit, LAYER, &table);
	emit_place(&emit, LAYER, &table, &layer->rows);
	(void)half_experts.forward(&emit, LAYER, layer->x, (struct rh_view){0}, layer->y, &layer->rows);
	half_experts.backward(&emit, LAYER, &layer->rows, layer->dy, layer->dx);
	half_experts.gradients(&emit, LAYER, &layer->rows, layer->x);
	must(emit.rc);
	must(layer->device->ops->synchronize(layer->device));
	double seconds = now() - start;
	rh_arena_reset(&layer->arena, mark);
	return seconds;
}

static void send(struct layer *layer, void *to, const float *from, int64_t count)
{
	must(layer->device->ops->copy_up(layer->device, RH_STREAM_COMPUTE, to, from, count * 4));
	must(layer->device->ops->synchronize(layer->device));
}

/* ---- the job ---- */

/* Random values of the job's tensors, in the order in which the peer reads them, to the device and to the file. */
static void fill(struct layer *layer, FILE *file)
{
	const struct rh_layer *at = &layer->model->layer[LAYER];
	const struct rh_block *block = block_of(layer);
	float *weights = (float *)(void *)layer->base;
	const struct {
		float *to;
		int64_t count;
		float bound;
	} tensor[] = {{layer->x.data, TOKENS * HIDDEN, 1},
	              {layer->dy.data, TOKENS * HIDDEN, 1},
	              {weights + block->tensor[at->own[RH_MLP][MOE_ROUTER]].offset, EXPERTS * HIDDEN, 0.05f},
	              {weights + block->tensor[at->own[RH_MLP][MOE_GATE_UP]].offset, (int64_t)EXPERTS * 2 * WIDE * HIDDEN, 0.05f},
	              {weights + block->tensor[at->own[RH_MLP][MOE_DOWN]].offset, (int64_t)EXPERTS * HIDDEN * WIDE, 0.05f}};
	uint32_t state = 1;
	for (size_t t = 0; t < sizeof tensor / sizeof *tensor; t++) {
		float *values = malloc((size_t)tensor[t].count * 4);
		if (!values)
			must(-ENOMEM);
		for (int64_t i = 0; i < tensor[t].count; i++)
			values[i] = tensor[t].bound * ((float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1);
		send(layer, tensor[t].to, values, tensor[t].count);
		if (fwrite(values, 4, (size_t)tensor[t].count, file) != (size_t)tensor[t].count)
			must(rh_fail(-errno, "writing the peer's input: %s", strerror(errno)));
		free(values);
	}
	if (fflush(file))
		must(rh_fail(-errno, "writing the peer's input: %s", strerror(errno)));
}

/* As before a step's first micro-batch. */
static void clear_gradients(struct layer *layer)
{
	const struct rh_block *block = block_of(layer);
	struct rh_op op = {.kind = RH_OP_FILL};
	op.operand[RH_FILL_Y] = rh_view_of(layer->gradient[layer->model->layer[LAYER].block[0]][0], RH_F32, 1, block->elements);
	must(launch(layer->device, &op));
}

/* ---- the peer ---- */

struct peer {
	pid_t process; /* 0: there is none */
	FILE *to, *from;
};

static void peer_open(struct peer *peer, const char *input, const char *output, int threads)
{
	const char *python = getenv("MOE_PEER");
	int up[2], down[2];
	char number[6][16];
	const int64_t sizes[6] = {TOKENS, HIDDEN, WIDE, EXPERTS, TOP, threads};
	*peer = (struct peer){0};
	python = python ? python : "build/venv/run";
	(void)signal(SIGPIPE, SIG_IGN); /* one that breaks gives no answer */
	if (access(python, X_OK) || pipe(up) || pipe(down))
		return;
	for (int i = 0; i < 6; i++)
		snprintf(number[i], sizeof number[i], "%lld", (long long)sizes[i]);
	peer->process = fork();
	if (!peer->process) {
		dup2(up[0], 0);
		dup2(down[1], 1);
		close(up[1]);
		close(down[0]);
		execl(python, python, "bench/moe-cpu-peer.py", input, output, number[0], number[1], number[2], number[3], number[4],
		      number[5], (char *)NULL);
		_exit(127);
	}
	close(up[0]);
	close(down[1]);
	peer->to = fdopen(up[1], "w");
	peer->from = fdopen(down[0], "r");
}

/* Seconds; 0: there is no peer, or it broke. */
static double peer_run(struct peer *peer, enum form form)
{
	char text[64] = "";
	if (!peer->process)
		return 0;
	fprintf(peer->to, "%s\n", form_name[form]);
	fflush(peer->to);
	return fgets(text, sizeof text, peer->from) ? strtod(text, NULL) : 0;
}

static void peer_close(struct peer *peer)
{
	if (!peer->process)
		return;
	fclose(peer->to);
	fclose(peer->from);
	waitpid(peer->process, NULL, 0);
}

/* The largest relative difference from the peer's y, dx and router's gradient, each as a whole. */
static double difference(struct layer *layer, const char *output)
{
	const struct rh_layer *at = &layer->model->layer[LAYER];
	float *gradient = layer->gradient[at->block[0]][0] + block_of(layer)->tensor[at->own[RH_MLP][MOE_ROUTER]].offset;
	const struct {
		const void *from;
		int64_t count;
	} result[RESULTS] = {{layer->y.data, TOKENS * HIDDEN}, {layer->dx.data, TOKENS * HIDDEN}, {gradient, EXPERTS * HIDDEN}};
	FILE *file = fopen(output, "rbe");
	double worst = file ? 0 : INFINITY;
	for (int r = 0; file && r < RESULTS; r++) {
		size_t count = (size_t)result[r].count;
		float *ours = malloc(count * 4), *theirs = calloc(count, 4);
		double apart = 0, norm = 0;
		must(layer->device->ops->copy_down(layer->device, RH_STREAM_COMPUTE, ours, result[r].from, result[r].count * 4));
		must(layer->device->ops->synchronize(layer->device));
		if (fread(theirs, 4, count, file) != count)
			apart = INFINITY;
		for (size_t i = 0; i < count; i++) {
			apart += pow((double)ours[i] - (double)theirs[i], 2);
			norm += pow((double)theirs[i], 2);
		}
		worst = fmax(worst, sqrt(apart / norm));
		free(ours);
		free(theirs);
	}
	if (file)
		fclose(file);
	return worst;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *times, int count)
{
	qsort(times, (size_t)count, sizeof *times, ascending);
	return (times[(count - 1) / 2] + times[count / 2]) / 2;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : rh_machine_cores(), rounds = argc > 2 ? atoi(argv[2]) : 9;
	char input[] = "/tmp/rh-moe-XXXXXX", output[sizeof input + 4], machine[256];
	int fd = threads > 0 && rounds > 0 && rounds <= MOST_ROUNDS ? mkstemp(input) : -1;
	FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
	if (!file) {
		fprintf(stderr, "usage: moe-cpu [threads [rounds, at most %d]]; it writes 390 MB to /tmp\n", MOST_ROUNDS);
		return 2;
	}
	struct layer layer;
	struct peer peer;
	double ours[FORMS][MOST_ROUNDS], theirs[FORMS][MOST_ROUNDS], apart = 0;
	snprintf(output, sizeof output, "%s.out", input);
	layer_open(&layer, threads);
	fill(&layer, file);
	fclose(file);
	peer_open(&peer, input, output, threads);
	for (int round = -1; round < rounds; round++) /* the first one is not counted */
		for (int form = 0; form < FORMS; form++) {
			int at = round < 0 ? 0 : round;
			clear_gradients(&layer);
			must(layer.device->ops->synchronize(layer.device));
			ours[form][at] = layer_run(&layer, (enum form)form);
			theirs[form][at] = peer_run(&peer, (enum form)form);
			if (round < 0 && form == FULL && theirs[form][at] > 0)
				apart = difference(&layer, output);
		}
	peer_close(&peer);
	layer_close(&layer);
	unlink(input);
	unlink(output);
	double value[FORMS], reference[FORMS];
	for (int form = 0; form < FORMS; form++) {
		value[form] = median(ours[form], rounds) * 1e3;
		reference[form] = median(theirs[form], rounds) * 1e3;
		printf("%-6s: %.0f ms, transformers %.0f ms%s\n", form_name[form], value[form], reference[form],
		       reference[form] > 0 ? "" : " (build/venv gave no answer)");
	}
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"moe-cpu\", \"value\": %.1f, \"unit\": \"ms forward and backward, full, 1024 tokens, 64 experts of 512, "
	       "top 8, hidden 1024, fp32\", \"reference\": %.1f, \"reference_is\": \"transformers grouped_mm\", \"ratio\": %.3f, "
	       "\"frozen\": {\"value\": %.1f, \"reference\": %.1f, \"ratio\": %.3f}, \"difference\": %.2g, \"rounds\": %d, "
	       "\"machine\": \"%s, %d threads\"}\n",
	       value[FULL], reference[FULL], reference[FULL] / value[FULL], value[FROZEN], reference[FROZEN],
	       reference[FROZEN] / value[FROZEN], apart, rounds, machine, threads);
	return apart > 1e-4;
}
