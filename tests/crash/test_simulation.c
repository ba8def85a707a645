/* Whole runs under all that can happen to them, drawn from a seed: the process is killed at a change of its files or at any moment, told to
 * stop, its disk fails or is full, its drive fails, its clock is set. Each is gone on with until it ends, and then its weights are those of
 * a run to which nothing happened. RH_CRASH_N: so many seeds; RH_CRASH_SEED: the first. */
#include "cli/good.h"
#include "fs_faults.h"

#include "checkpoint/checkpoint.h"
#include "core/log.h"
#include "offload/drive.h"
#include "train/train.h"

#include <sys/syscall.h>
#include <time.h>

static long set_by; /* seconds that the wall clock was set by */

/* Linked before the C library's. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, out);
	if (!rc && clock == CLOCK_REALTIME)
		out->tv_sec += set_by;
	return rc;
}

static const struct kind {
	const char *name, *keys, *file;
} kinds[] = {
        {"full", "--save_steps 1 --save_total_limit 2", "model.safetensors"},
        {"lora", "--use_peft true --save_steps 2", "adapter_model.safetensors"},
        {"spilled", "--use_peft true --save_steps 1 --spill optimizer,masters --max_nvme 64MiB --nvme_dirs %s/nvme",
         "adapter_model.safetensors"},
        {"stale", "--save_steps 2 --optimizer_staleness 1 --bf16 true", "model.safetensors"},
        {"devices", "--use_peft true --save_steps 1 --save_total_limit 1 --device cpu:2", "adapter_model.safetensors"},
};
enum { KINDS = sizeof kinds / sizeof *kinds, MOST_ROUNDS = 40 };

enum trouble { NOTHING, KILLED_AT, KILLED_LATER, FAILING, READS_FAILING, FULL, TOLD, DRIVE, SHORT, TROUBLES };
static const char *const trouble_names[TROUBLES] = {"nothing",        "killed at a change", "killed",
                                                    "a change fails", "a look fails",       "disk full",
                                                    "told to stop",   "drive fails",        "short reads and writes"};

static void load(const struct scratch *scratch, const struct kind *kind, int resumes, struct rh_config *config)
{
	char line[2048], keys[512];
	char *argv[64], *rest = line;
	int argc = 0;
	snprintf(keys, sizeof keys, kind->keys, scratch->dir);
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --max_length 64 --per_device_train_batch_size 2 --max_steps 6 "
	         "--logging_steps 1 --output_dir %s/out %s%s",
	         scratch->dir, scratch->dir, scratch->dir, keys, resumes ? " --resume_from_checkpoint true" : "");
	for (char *word; (word = strsep(&rest, " "));)
		if (*word)
			argv[argc++] = word;
	check_ok(rh_config_load("train", argc, argv, NULL, config));
}

static void arm(enum trouble trouble, uint64_t *seed)
{
	static const unsigned looks[] = {FS_OPEN, FS_READ, FS_STATUS};
	static const int codes[] = {EIO, EMFILE, EACCES};
	static const char *const full[] = {"optimizer", "metrics.jsonl", "run_state", "/out/"};
	long at = 1 + (long)(check_random(seed) % 400);
	set_by = (long)(check_random(seed) % 3) * 3600 - 3600;
	switch (trouble) {
	case KILLED_AT:
		fs_fault_set(FS_KILLED, at);
		break;
	case FAILING:
		fs_fault_set(FS_FAILS, at);
		break;
	case READS_FAILING:
		fs_fault_set_kinds(FS_FAILS, looks[check_random(seed) % 3], at, codes[check_random(seed) % 3]);
		break;
	case FULL:
		fs_fault_set(FS_NONE, 0);
		fs_faults.full = full[check_random(seed) % 4];
		break;
	case SHORT:
		fs_fault_set_kinds(FS_SHORT, 0, 0, 0);
		break;
	case DRIVE:
		rh_drive_fail_nth(1 + check_random(seed) % 60, check_random(seed) % 2 ? RH_FAULT_FAIL : RH_FAULT_FLIP, -EIO);
		break;
	default:
		break;
	}
}

/* A run in a process of its own: its exit status, or 128 + the signal that ended it. */
static int run(const struct scratch *scratch, const struct kind *kind, enum trouble trouble, uint64_t *seed, int resumes)
{
	useconds_t after = check_random(seed) % 30000;
	int status;
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct rh_config config;
		struct rh_train_result result;
		if (!freopen(path_of("%s/err", scratch->dir), "w", stderr))
			_exit(3);
		load(scratch, kind, resumes, &config);
		arm(trouble, seed);
		int rc = rh_train(&config, &result);
		if (rc)
			fprintf(stderr, "%s\n", rh_error(rc));
		fflush(stderr);
		_exit(rc ? 1 : result.interrupted ? 4 : 0);
	}
	(void)check_random(seed); /* the child's draws are its own: another part of the sequence from here on */
	if (trouble == KILLED_LATER || trouble == TOLD) {
		usleep(after);
		kill(child, trouble == TOLD ? SIGTERM : SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int has_checkpoint(const struct scratch *scratch)
{
	char out[96];
	snprintf(out, sizeof out, "%s/out", scratch->dir);
	check_ok(rh_checkpoint_put_back(out));
	int any = rh_checkpoint_count(out);
	return any > 0;
}

/* Whether a new run may begin there: it leaves nothing but logs before its first checkpoint. */
static void begin_anew(const struct scratch *scratch)
{
	check_ok(rh_dir_remove(path_of("%s/out", scratch->dir)));
}

static void simulate(const struct scratch *scratch, uint64_t number, int count[TROUBLES])
{
	uint64_t seed = number * 0x9e3779b97f4a7c15u + 1;
	for (int i = 0; i < 4; i++)
		(void)check_random(&seed);
	const struct kind *kind = &kinds[check_random(&seed) % KINDS];
	int rounds = 0, finished = 0, newest = 0;
	char log[4096] = "";
	begin_anew(scratch);
	check_ok(rh_dir_remove(path_of("%s/nvme", scratch->dir)));
	check_ok(rh_dir_make(path_of("%s/nvme", scratch->dir)));
	while (!finished && rounds++ < MOST_ROUNDS) {
		enum trouble trouble = rounds > 8 ? NOTHING : (enum trouble)(check_random(&seed) % TROUBLES);
		int resumes = has_checkpoint(scratch);
		if (!resumes)
			begin_anew(scratch);
		int status = run(scratch, kind, trouble, &seed, resumes);
		count[trouble]++;
		snprintf(log + strlen(log), sizeof log - strlen(log), " [%s: %d]", trouble_names[trouble], status);
		int usual = status == 0 || status == 1 || status == 4 || status == FS_KILLED_STATUS ||
		            ((trouble == KILLED_LATER) && status == 128 + SIGKILL) || (trouble == TOLD && status == 128 + SIGTERM);
		size_t length;
		char *err = read_bytes(path_of("%s/err", scratch->dir), &length);
		if (!usual || (status == 1 && (trouble == NOTHING || trouble == TOLD || trouble == SHORT || length < 15)))
			fail_msg("seed %llu, %s:%s: %s", (unsigned long long)number, kind->name, log, err);
		free(err);
		finished = status == 0;
		/* a finished checkpoint is never lost */
		char *found = NULL;
		struct rh_config config;
		load(scratch, kind, 1, &config);
		int step = 0;
		if (has_checkpoint(scratch)) {
			if (rh_checkpoint_find(&config, &found))
				fail_msg("seed %llu, %s:%s: %s", (unsigned long long)number, kind->name, log, rh_error(-EINVAL));
			sscanf(strrchr(found, '/'), "/checkpoint-%d", &step);
			rh_free(found);
		}
		rh_config_free(&config);
		if (step < newest)
			fail_msg("seed %llu, %s:%s: checkpoint %d is lost, %d is the newest", (unsigned long long)number, kind->name, log,
			         newest, step);
		newest = step;
	}
	if (!finished || !same_file(path_of("%s/out/%s", scratch->dir, kind->file),
	                            path_of("%s/references/%s-%s", scratch->dir, kind->name, kind->file)))
		fail_msg("seed %llu, %s:%s: another result", (unsigned long long)number, kind->name, log);
}

static void test_whatever_happens_a_run_ends_in_the_same_weights(void **state)
{
	(void)state;
	const char *wanted = getenv("RH_CRASH_N"), *first = getenv("RH_CRASH_SEED");
	int seeds = wanted ? atoi(wanted) : getenv("RH_LONG") ? 300 : 12, count[TROUBLES] = {0};
	uint64_t begin = first ? strtoull(first, NULL, 10) : 1, seed = 1;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/nvme", scratch.dir)));
	check_ok(rh_dir_make(path_of("%s/references", scratch.dir)));
	for (int k = 0; k < KINDS; k++) {
		begin_anew(&scratch);
		assert_int_equal(run(&scratch, &kinds[k], NOTHING, &seed, 0), 0);
		copy_file(path_of("%s/out/%s", scratch.dir, kinds[k].file),
		          path_of("%s/references/%s-%s", scratch.dir, kinds[k].name, kinds[k].file));
	}
	for (int s = 0; s < seeds; s++)
		simulate(&scratch, begin + (uint64_t)s, count);
	printf("%d seeds from %llu:", seeds, (unsigned long long)begin);
	for (int t = 0; t < TROUBLES; t++)
		printf(" %s %d%s", trouble_names[t], count[t], t + 1 < TROUBLES ? "," : "\n");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_whatever_happens_a_run_ends_in_the_same_weights)};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
