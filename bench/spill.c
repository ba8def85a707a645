/* Does a step whose optimizer state lies on NVMe take no longer than it must? A model from random initialisation in bf16, its moments and
 * masters on NVMe, against
 *
 *   asynchronous       max(compute, bytes / rate)
 *   sync, clipping     backward + max(forward, bytes / rate)
 *
 * with `compute`, forward and backward taken from the same step with its state in memory (the optimizer's arithmetic included in what it
 * overlaps), and `rate` that of reads and writes at once through the same space, measured here by the same transfers.
 *
 * usage: spill [directory] [layers] [tokens] [steps] */
#include "config/config.h"
#include "core/log.h"
#include "nvme.h"
#include "run/machine.h"
#include "train/session.h"

#include <string.h>
#include <unistd.h>

enum { HIDDEN = 1024 };

struct setting {
	char *dir;
	char config[1024];
	int64_t tokens;
	int steps;
};

static void write_config(struct setting *setting, int layers)
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
	        HIDDEN, 4 * HIDDEN, layers, HIDDEN / 64, HIDDEN / 64);
	fclose(file);
}

/* Seconds of a step, the first left out; *forward: of its forward alone. */
static double step_seconds(const struct setting *setting, int staleness, int spill, double clip, double *forward, int64_t *bytes)
{
	struct rh_config config = {.config_name = (char *)(uintptr_t)setting->config,
	                           .dtype = RH_BF16,
	                           .state_layout = RH_LAYOUT_SPLIT,
	                           .seed = 42,
	                           .device = (char *)(uintptr_t) "cpu:1",
	                           .forward_cut_count = -1,
	                           .backward_cut_count = -1,
	                           .max_vram = (int64_t)1 << 30,
	                           .optimizer_staleness = staleness,
	                           .spill = spill,
	                           .max_nvme = INT64_MAX,
	                           .nvme_dirs = {.item = (char **)(uintptr_t)&setting->dir, .count = 1}};
	struct rh_micro_shape shape = {
	        .tokens = setting->tokens, .documents = 1, .longest = setting->tokens, .head_rows = setting->tokens - 1};
	struct rh_workload work = {.train = shape, .infer = shape, .train_micro_batches = 1, .infer_micro_batches = 1};
	struct rh_session session;
	size_t n = (size_t)setting->tokens;
	int32_t *ids = calloc(n, 4), *position = calloc(n, 4), *target = calloc(n, 4), start[2] = {0, (int32_t)setting->tokens};
	float *loss = calloc(n, sizeof *loss);
	for (size_t i = 0; i < n; i++) {
		ids[i] = (int32_t)(i * 37 % 8000);
		position[i] = (int32_t)i;
		target[i] = (int32_t)(i * 91 % 8000);
	}
	struct rh_micro_batch batch = {.shape = shape,
	                               .ids = ids,
	                               .position = position,
	                               .start_q = start,
	                               .start_k = start,
	                               .head_row = position,
	                               .target = target,
	                               .loss = loss};
	check(rh_session_open(&config, RH_SESSION_TRAINS, &session));
	check(rh_session_start(&session, &work));
	*bytes = 2 * session.bytes.nvme_step; /* read, and written */
	double began = 0;
	for (int step = 0; step <= setting->steps; step++) {
		if (step == 1)
			began = rh_clock_seconds();
		check(rh_executor_train(session.executor, &batch, 1, step, 1.0f / (float)shape.head_rows));
		check(rh_updater_finish(session.updater));
		double norm = rh_optimizer_norm(session.store);
		struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0},
		                           .learning_rate = 1e-5,
		                           .scale = rh_optimizer_clip(norm, clip),
		                           .step = step + 1};
		rh_updater_begin(session.updater, &update);
	}
	double each = (rh_clock_seconds() - began) / setting->steps;
	check(rh_updater_flush(session.updater));
	*forward = 1e9;
	for (int i = 0; i < 2 && !spill; i++) {
		began = rh_clock_seconds();
		check(rh_executor_infer(session.executor, &batch, 1));
		double took = rh_clock_seconds() - began;
		*forward = took < *forward ? took : *forward;
	}
	rh_session_close(&session);
	free(ids);
	free(position);
	free(target);
	free(loss);
	return each;
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
	int layers = argc > 2 ? atoi(argv[2]) : 4;
	setting.tokens = argc > 3 ? atoi(argv[3]) : 512;
	setting.steps = argc > 4 ? atoi(argv[4]) : 4;
	char machine[256];
	write_config(&setting, layers);
	rh_log_quiet(1);
	struct ours ours;
	ours_open(&ours, dir);
	(void)ours_run(&ours, WRITE, 1);
	double before = ours_run(&ours, MIXED, 2), worst = 1e9, ratio[2];
	for (int stale = 1; stale >= 0; stale--) {
		double forward, unused;
		int64_t none, bytes;
		double clip = stale ? 0 : 1, compute = step_seconds(&setting, stale, 0, clip, &forward, &none);
		double took = step_seconds(&setting, stale, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS, clip, &unused, &bytes);
		double rate = ours_run(&ours, MIXED, 2), io = (double)bytes / (0.5 * (rate + before));
		double backward = compute - forward,
		       least = stale ? (compute > io ? compute : io) : backward + (forward > io ? forward : io);
		ratio[stale] = least / took;
		before = rate;
		printf("%s: in memory %.3f s a step (forward %.3f), NVMe %.3f s for %.2f GB at %.0f MB/s; least %.3f, took %.3f: %.3f\n",
		       stale ? "asynchronous" : "sync, clipping", compute, forward, io, (double)bytes * 1e-9, rate * 1e-6, least, took,
		       ratio[stale]);
		worst = ratio[stale] < worst ? ratio[stale] : worst;
	}
	ours_close(&ours);
	unlink(setting.config);
	rmdir(setting.dir);
	rh_machine_describe(machine, sizeof machine);
	printf("{\"bench\": \"spill\", \"value\": %.3f, \"unit\": \"of the formula, asynchronous\", \"reference\": 1, \"ratio\": %.3f, "
	       "\"sync_ratio\": %.3f, \"worst_ratio\": %.3f, \"machine\": \"%s\"}\n",
	       ratio[1], ratio[1], ratio[0], worst, machine);
	return 0;
}
