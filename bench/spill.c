/* Does a step whose optimizer state lies on NVMe take no longer than it must? A model from random initialisation in bf16, its moments and
 * masters on NVMe, against
 *
 *   asynchronous, or without clipping     max(compute, bytes / rate)
 *   synchronous, with clipping            backward + max(forward, bytes / rate)
 *
 * with `compute`, forward and backward taken from the same step with its state in memory (the optimizer's arithmetic included in what it
 * overlaps), and `rate` that of reads and writes at once through the same space, measured here by the same transfers. Both sessions are
 * open at once and run in turn, memory and the rate before and after NVMe: each round is compared with the mean of both, since a drive and
 * a processor that are shared wander; of all rounds the median counts.
 *
 * Steps go as training's do (src/train/steps.c): asynchronous ones begin before the one before is over, and without clipping blocks are
 * updated as their gradients arrive. Those of a stage arrive together at its end, so that without clipping there are backward stages of one
 * layer each, as models have that are much larger than the device: in one stage nothing of an update would be beside the backward pass.
 *
 * The lowest layer's gradient and the embedding's come last and are needed first, so that the formula leaves out what their update takes:
 * a share of the state. It is 8 % of 28 layers of 384, and 30 % of four of 1024.
 *
 * usage: spill [directory] [layers] [tokens] [steps a round] [rounds] [async|async-clipped|sync|sync-clipped|all] [hidden size] */
#include "config/config.h"
#include "core/log.h"
#include "machine.h"
#include "nvme.h"
#include "session/session.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ROUNDS_MOST = 16, CUTS_MOST = 64 };
static const double rate_seconds = 0.5;

static const struct kind {
	const char *name;
	int stale;
	double clip;
} kinds[] = {{"async", 1, 0}, {"async-clipped", 1, 1}, {"sync", 0, 0}, {"sync-clipped", 0, 1}};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct setting {
	char *dir;
	char config[1024];
	int64_t tokens, cut[CUTS_MOST]; /* cut: one before each layer but the first */
	int cuts, steps, rounds;
};

/* A session and its one micro-batch. */
struct run {
	struct rh_config config;
	struct rh_session session;
	struct rh_micro_batch batch;
	int32_t *ids, *position, *target, start[2];
	float *loss;
	int step;
};

static void write_config(struct setting *setting, int layers, int hidden)
{
	snprintf(setting->config, sizeof setting->config, "%s/roundhouse-bench-config.json", setting->dir);
	FILE *file = fopen(setting->config, "w");
	if (!file) {
		fprintf(stderr, "spill: cannot write to %s\n", setting->dir);
		exit(1);
	}
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
	        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": 64, \"vocab_size\": "
	        "8192, "
	        "\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}",
	        hidden, 4 * hidden, layers, hidden / 64, hidden / 64);
	fclose(file);
}

static void make_batch(struct run *run, int64_t tokens)
{
	size_t n = (size_t)tokens;
	run->ids = calloc(n, 4);
	run->position = calloc(n, 4);
	run->target = calloc(n, 4);
	run->loss = calloc(n, sizeof *run->loss);
	run->start[1] = (int32_t)tokens;
	for (size_t i = 0; i < n; i++) {
		run->ids[i] = (int32_t)(i * 37 % 8000);
		run->position[i] = (int32_t)i;
		run->target[i] = (int32_t)(i * 91 % 8000);
	}
	run->batch = (struct rh_micro_batch){
	        .shape = {.tokens = tokens, .documents = 1, .longest = tokens, .head_rows = tokens - 1},
	        .ids = run->ids,
	        .position = run->position,
	        .start_q = run->start,
	        .start_k = run->start,
	        .head_row = run->position,
	        .target = run->target,
	        .loss = run->loss,
	};
}

static void run_open(struct run *run, const struct setting *setting, const struct kind *kind, int spill)
{
	int apart = kind->clip == 0;
	*run = (struct run){0};
	run->config = (struct rh_config){.config_name = (char *)(uintptr_t)setting->config,
	                                 .dtype = RH_BF16,
	                                 .state_layout = RH_LAYOUT_SPLIT,
	                                 .seed = 42,
	                                 .device = (char *)(uintptr_t) "cpu:1",
	                                 .forward_cut_count = -1,
	                                 .backward_cut_count = apart ? setting->cuts : -1,
	                                 .backward_cuts = apart ? (int64_t *)(uintptr_t)setting->cut : NULL,
	                                 .max_vram = (int64_t)1 << 30,
	                                 .optimizer_staleness = kind->stale,
	                                 .max_grad_norm = kind->clip,
	                                 .spill = spill,
	                                 .max_nvme = INT64_MAX,
	                                 .nvme_dirs = {.item = (char **)(uintptr_t)&setting->dir, .count = 1}};
	make_batch(run, setting->tokens);
	struct rh_workload work = {
	        .train = run->batch.shape, .infer = run->batch.shape, .train_micro_batches = 1, .infer_micro_batches = 1};
	check(rh_session_open(&run->config, RH_SESSION_TRAINS, &run->session));
	check(rh_session_start(&run->session, &work));
}

static void run_close(struct run *run)
{
	rh_session_close(&run->session);
	free(run->ids);
	free(run->position);
	free(run->target);
	free(run->loss);
}

static double processor_seconds(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

struct cost {
	double seconds, processor, waited; /* of a step; waited: by the optimizer for the drive */
};

static double waited_seconds(const struct run *run)
{
	struct rh_space_stats stats = {0};
	if (run->session.space)
		rh_space_stats(run->session.space, &stats);
	return stats.wait_seconds;
}

static void begin_step(struct run *run)
{
	struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 1e-5, .scale = 1, .step = run->step + 1};
	rh_updater_open(run->session.updater, &update, run->config.max_grad_norm);
	check(rh_executor_begin(run->session.executor, &run->batch, 1, run->step, 1.0f / (float)run->batch.shape.head_rows));
	run->step++;
}

/* The first step is left out: it has no update beside it. */
static struct cost run_steps(struct run *run, int steps)
{
	double began = 0, used = 0, waited = 0, norm;
	int64_t ahead = rh_executor_steps_in_flight(run->session.executor) - 1;
	for (int64_t i = 0, begun = 0; i <= steps; i++) {
		if (i == 1) {
			began = rh_clock_seconds();
			used = processor_seconds();
			waited = waited_seconds(run);
		}
		for (; begun <= i + ahead && begun <= steps; begun++)
			begin_step(run);
		check(rh_executor_finish(run->session.executor));
		check(rh_updater_norm(run->session.updater, &norm));
	}
	struct cost cost = {(rh_clock_seconds() - began) / steps, (processor_seconds() - used) / steps,
	                    (waited_seconds(run) - waited) / steps};
	check(rh_updater_flush(run->session.updater));
	return cost;
}

static double forward_seconds(struct run *run)
{
	double least = 1e9;
	for (int i = 0; i < 2; i++) {
		double began = rh_clock_seconds();
		check(rh_executor_infer(run->session.executor, &run->batch, 1));
		double took = rh_clock_seconds() - began;
		least = took < least ? took : least;
	}
	return least;
}

/* What one round is compared with. */
struct yardstick {
	double compute, forward, processor, rate; /* seconds of a step, bytes a second */
};

static struct yardstick measure(const struct setting *setting, struct ours *ours, struct run *memory)
{
	struct cost cost = run_steps(memory, setting->steps);
	double forward = forward_seconds(memory);
	return (struct yardstick){cost.seconds, forward, cost.processor, ours_run(ours, MIXED, rate_seconds)};
}

/* The median of the rounds' ratios. */
static double compare(const struct setting *setting, struct ours *ours, const struct kind *kind)
{
	static struct run memory, nvme;
	double ratio[ROUNDS_MOST];
	run_open(&memory, setting, kind, 0);
	run_open(&nvme, setting, kind, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS);
	double bytes = 2 * (double)nvme.session.plan.bytes.nvme_step; /* read, and written */
	struct yardstick before = measure(setting, ours, &memory);
	for (int round = 0; round < setting->rounds; round++) {
		struct cost took = run_steps(&nvme, setting->steps);
		struct yardstick after = measure(setting, ours, &memory);
		double compute = 0.5 * (before.compute + after.compute), forward = 0.5 * (before.forward + after.forward);
		double rate = 0.5 * (before.rate + after.rate), io = bytes / rate;
		double backward = compute - forward, least = compute > io ? compute : io;
		if (!kind->stale && kind->clip != 0)
			least = backward + (forward > io ? forward : io);
		ratio[round] = least / took.seconds;
		printf("%s: in memory %.3f s a step (forward %.3f, processor %.3f), NVMe %.3f s for %.2f GB at %.0f MB/s; least %.3f, took "
		       "%.3f (processor %.3f, drive waited for %.3f): %.3f\n",
		       kind->name, compute, forward, 0.5 * (before.processor + after.processor), io, bytes * 1e-9, rate * 1e-6, least,
		       took.seconds, took.processor, took.waited, ratio[round]);
		before = after;
	}
	run_close(&memory);
	run_close(&nvme);
	double middle = median(ratio, setting->rounds);
	printf("%s: median %.3f, %.3f to %.3f\n", kind->name, middle, ratio[0], ratio[setting->rounds - 1]);
	return middle;
}

int main(int argc, char **argv)
{
	char *dir = argc > 1 ? argv[1] : (char *)(uintptr_t) "build", inner[1024];
	snprintf(inner, sizeof inner, "%s/spill-XXXXXX", dir); /* a run has a directory to itself */
	struct setting setting = {.dir = mkdtemp(inner)};
	if (!setting.dir) {
		fprintf(stderr, "spill: cannot write to %s\n", dir);
		return 1;
	}
	int layers = argc > 2 ? atoi(argv[2]) : 28;
	for (setting.cuts = 0; setting.cuts < layers && setting.cuts < CUTS_MOST; setting.cuts++)
		setting.cut[setting.cuts] = setting.cuts + 1;
	setting.tokens = argc > 3 ? atoi(argv[3]) : 512;
	setting.steps = argc > 4 ? atoi(argv[4]) : 4;
	setting.rounds = argc > 5 ? atoi(argv[5]) : 3;
	setting.rounds = setting.rounds < 1 ? 1 : setting.rounds > ROUNDS_MOST ? ROUNDS_MOST : setting.rounds;
	char machine[256];
	write_config(&setting, layers, argc > 7 ? atoi(argv[7]) : 384);
	rh_log_quiet(1);
	struct ours ours;
	ours_open(&ours, dir, BY_OWNER);
	(void)ours_run(&ours, WRITE, 1);
	double ratio[KINDS] = {0};
	for (int k = 0; k < KINDS; k++)
		if (argc < 7 || !strcmp(argv[6], "all") || !strcmp(argv[6], kinds[k].name))
			ratio[k] = compare(&setting, &ours, &kinds[k]);
	ours_close(&ours);
	unlink(setting.config);
	rmdir(setting.dir);
	bench_machine(machine, sizeof machine);
	for (int k = 0; k < KINDS; k++)
		if (ratio[k] > 0)
			printf("{\"bench\": \"spill\", \"value\": %.3f, \"unit\": \"of the formula, %s\", \"reference\": 1, \"ratio\": "
			       "%.3f, "
			       "\"machine\": \"%s\"}\n",
			       ratio[k], kinds[k].name, ratio[k], machine);
	return 0;
}
