/* Boxes that mpirun starts: each takes its number from it, they find each other without addresses, and compute what one box does, and what
 * boxes over TLS do. Skipped where there is no MPI. */
#include "cli/boxes.h"

enum { BOXES = 3 };

static int has_mpi(void)
{
	const char *build = getenv("RH_BUILD");
	return !access(path_of("%s/roundhouse-mpi.so", build ? build : "build/release"), R_OK) && !system("command -v mpirun >/dev/null");
}

/* One configuration for all boxes, as a cluster has it: the directory alone is each one's own. */
static void write_shared(const struct scratch *scratch, const char *keys)
{
	char text[1024];
	int used = snprintf(text, sizeof text,
	                    "config_name: %s/hf\ntrain_file: %s/rows.jsonl\nmax_length: 64\nmax_steps: 6\nper_device_train_batch_size: 1\n"
	                    "gradient_accumulation_steps: 4\nlearning_rate: 1.0e-3\nlogging_steps: 1\nallow: [duplicates, overlap]\n"
	                    "mode: sync-pp\nlink_transport: mpi\n%s",
	                    scratch->dir, scratch->dir, keys);
	assert_true(used < (int)sizeof text);
	write_text(path_of("%s/shared.yaml", scratch->dir), text);
}

/* `before`: shell commands ahead of the program. Returns the exit status of mpirun. */
static int run_mpi(const struct scratch *scratch, const char *more, const char *before)
{
	char script[2048];
	snprintf(script, sizeof script,
	         "exec mpirun -n %d --allow-run-as-root --oversubscribe --mca btl self,vader,tcp sh -c '%s exec %s train %s/shared.yaml "
	         "--output_dir %s/out$((OMPI_COMM_WORLD_RANK + 1)) %s' >%s/mpi.log 2>&1",
	         BOXES, before, program_path(), scratch->dir, scratch->dir, more, scratch->logs);
	int status = system(script);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void check_ran(const struct scratch *scratch, int status)
{
	size_t length;
	if (status)
		fail_msg("mpirun: exit %d: %s", status, read_bytes(path_of("%s/mpi.log", scratch->logs), &length));
}

static void open_world(struct scratch *scratch, const char *keys, const char *more)
{
	make_files(scratch);
	write_config(scratch, keys, 1, 0, NULL);
	run_ok(scratch, "train %s/run0.yaml%s", scratch->dir, more);
	write_shared(scratch, keys);
}

static void test_boxes_of_mpirun_compute_what_one_does(void **state)
{
	(void)state;
	static const char all[] = "device: cpu:1\nsave_strategy: \"no\"\n",
	                  lora[] = "device: cpu:1\nsave_strategy: \"no\"\nlora_r: 4\nlora_target_modules: all-linear\n";
	struct scratch scratch;
	if (!has_mpi())
		check_skip("there is no MPI here (libopenmpi-dev, openmpi-bin)");
	open_world(&scratch, all, "");
	check_ran(&scratch, run_mpi(&scratch, "", ""));
	check_weights(&scratch, "model.safetensors", BOXES);
	scratch_close(&scratch);
	open_world(&scratch, lora, "");
	check_ran(&scratch, run_mpi(&scratch, "", ""));
	check_weights(&scratch, "adapter_model.safetensors", 1);
	scratch_close(&scratch);
}

/* Of each box: the program, what it reserves, and MPI's library. */
static void test_mpis_memory_is_planned(void **state)
{
	(void)state;
	struct scratch scratch;
	if (!has_mpi())
		check_skip("there is no MPI here (libopenmpi-dev, openmpi-bin)");
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	make_files(&scratch);
	write_shared(&scratch, "device: cpu:1\nsave_strategy: \"no\"\nlora_r: 4\nlora_target_modules: all-linear\n");
	check_ran(&scratch, run_mpi(&scratch, path_of("--json >%s/json$OMPI_COMM_WORLD_RANK", scratch.dir), ""));
	for (int k = 0; k < BOXES; k++) {
		json_t *json = json_load_file(path_of("%s/json%d", scratch.dir, k), 0, NULL);
		assert_non_null(json);
		check_peak(json, k);
		json_decref(json);
	}
	scratch_close(&scratch);
}

/* MPI ends all boxes with the one that is killed; all go on from the checkpoint that all have. */
static void test_a_run_that_mpi_ended_resumes(void **state)
{
	(void)state;
	static const char keys[] = "device: cpu:1\nsave_strategy: steps\nsave_steps: 2\n";
	struct scratch scratch;
	if (!has_mpi())
		check_skip("there is no MPI here (libopenmpi-dev, openmpi-bin)");
	open_world(&scratch, keys, " --max_steps 400");
	for (int victim = 0; victim < BOXES; victim++) {
		char before[512];
		snprintf(before, sizeof before,
		         "if [ $OMPI_COMM_WORLD_RANK = %d ]; then (until [ -e %s/out%d/checkpoint-%d/run_state.json ]; do sleep 0.05; "
		         "done; kill -9 $$) & "
		         "fi;",
		         victim, scratch.dir, victim + 1, 4 + 6 * victim);
		int status = run_mpi(&scratch, victim ? "--max_steps 400 --resume_from_checkpoint true" : "--max_steps 400", before);
		if (!status)
			fail_msg("box %d was not killed in time", victim + 1);
	}
	check_ran(&scratch, run_mpi(&scratch, "--max_steps 400 --resume_from_checkpoint true", ""));
	check_weights(&scratch, "model.safetensors", BOXES);
	scratch_close(&scratch);
}

int main(void)
{
	limit_time(300);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_of_mpirun_compute_what_one_does),
	        cmocka_unit_test(test_mpis_memory_is_planned),
	        cmocka_unit_test(test_a_run_that_mpi_ended_resumes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
