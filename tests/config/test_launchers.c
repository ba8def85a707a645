/* Which box this is, and where box 1 is, as launchers say in the environment of the processes that they start. */
#include "place.h"

/* What a launcher may set; the tests' own environment may have come from one. */
static const char *const variables[] = {
        "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* Only these, as "NAME=VALUE NAME=VALUE". */
static void set_environment(const char *settings)
{
	char words[256], *rest = words;
	snprintf(words, sizeof words, "%s", settings);
	for (int i = 0; i < VARIABLES; i++)
		unsetenv(variables[i]);
	for (char *name; (name = strtok_r(rest, " ", &rest));) {
		char *value = strchr(name, '=');
		*value++ = 0;
		assert_false(setenv(name, value, 1));
	}
}

#define TORCHRUN " MASTER_ADDR=node-a MASTER_PORT=29500"
#define MPI      "link_transport: mpi\n"

static void test_launchers_say_which_box_this_is(void **state)
{
	(void)state;
	static const struct {
		const char *environment, *more;
		int box, boxes;
		const char *below, *above;
	} cases[] = {
	        {"RANK=0 WORLD_SIZE=2" TORCHRUN, "", 1, 2, NULL, "listen:29501"},
	        {"RANK=1 WORLD_SIZE=2" TORCHRUN, "", 2, 2, "node-a:29501", NULL},
	        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=2001:db8::7 MASTER_PORT=1", "", 2, 2, "[2001:db8::7]:2", NULL},
	        {"RANK=2 WORLD_SIZE=3" TORCHRUN, "link_below: b:1\n", 3, 3, "b:1", NULL},
	        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", MPI, 4, 4, NULL, NULL},
	        {"SLURM_PROCID=0 SLURM_NTASKS=3", MPI, 1, 3, NULL, NULL},
	        {"RANK=0 WORLD_SIZE=2" TORCHRUN, MPI, 1, 2, NULL, NULL},
	        /* torchrun in a job of Slurm; mpirun in a job of one task */
	        {"RANK=1 WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=5" TORCHRUN, "", 2, 2, "node-a:29501", NULL},
	        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=1", MPI, 2, 2, NULL, NULL},
	        {"RANK=0 WORLD_SIZE=1 SLURM_PROCID=1 SLURM_NTASKS=2", MPI, 2, 2, NULL, NULL},
	        /* keys win, one by one */
	        {"RANK=0 WORLD_SIZE=2" TORCHRUN, "box: 2\n", 2, 2, "node-a:29501", NULL},
	        {"RANK=0 WORLD_SIZE=2" TORCHRUN, "boxes: 3\n", 1, 3, NULL, "listen:29501"},
	        {"RANK=0 WORLD_SIZE=2" TORCHRUN, "link_above: b:1\n", 1, 2, NULL, "b:1"},
	        {"RANK=1 WORLD_SIZE=2" TORCHRUN, "link_below: listen:2\n", 2, 2, "listen:2", NULL},
	        {"RANK=x WORLD_SIZE=y MASTER_PORT=z MASTER_ADDR=b", "box: 1\nboxes: 2\nlink_above: b:1\n", 1, 2, NULL, "b:1"},
	};
	char yaml[256];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_config c;
		set_environment(cases[i].environment);
		snprintf(yaml, sizeof yaml, "mode: sync-pp\n%s", cases[i].more);
		check_ok(load(yaml, NULL, &c));
		assert_int_equal(c.box, cases[i].box);
		assert_int_equal(c.boxes, cases[i].boxes);
		const char *found[] = {c.link_below, c.link_above}, *expected[] = {cases[i].below, cases[i].above};
		for (int side = 0; side < 2; side++) {
			assert_int_equal(!found[side], !expected[side]);
			if (found[side])
				assert_string_equal(found[side], expected[side]);
		}
		rh_config_free(&c);
	}
	set_environment("");
}

/* A run of one box is nobody's part, whoever started it. */
static void test_launchers_are_not_asked_in_mode_local(void **state)
{
	(void)state;
	struct rh_config c;
	set_environment("RANK=1 WORLD_SIZE=2" TORCHRUN);
	check_ok(load("", NULL, &c));
	assert_int_equal(c.box, 0);
	assert_int_equal(c.boxes, 0);
	assert_null(c.link_below);
	rh_config_free(&c);
	set_environment("");
}

static void test_launchers_that_cannot_be_right_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *environment, *yaml, *words;
	} cases[] = {
	        {"RANK=one WORLD_SIZE=2", "mode: sync-pp\n", "RANK of the environment: 'one' is not allowed"},
	        {"RANK=-1 WORLD_SIZE=2", "mode: sync-pp\n", "RANK of the environment: '-1'"},
	        {"RANK=2 WORLD_SIZE=2", "mode: sync-pp\n", "RANK of the environment: '2'"},
	        {"RANK=0 WORLD_SIZE=two", "mode: sync-pp\n", "WORLD_SIZE of the environment: 'two'"},
	        {"RANK=0 WORLD_SIZE=0", "mode: sync-pp\n", "WORLD_SIZE of the environment: '0'"},
	        {"RANK=0 WORLD_SIZE=65", "mode: sync-pp\n", "WORLD_SIZE of the environment: '65' is not allowed; expected the number of "
	                                                     "boxes, at most 64"},
	        {"RANK=0 WORLD_SIZE=99999999999999999999", "mode: sync-pp\n", "WORLD_SIZE of the environment: '9999"},
	        {"OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=2", "mode: sync-pp\n", "OMPI_COMM_WORLD_RANK of the environment: '7'"},
	        {"SLURM_PROCID= SLURM_NTASKS=2", "mode: sync-pp\n", "SLURM_PROCID of the environment: ''"},
	        {"RANK=0 WORLD_SIZE=1", "mode: sync-pp\n", "mode sync-pp needs boxes"},
	        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=http", "mode: sync-pp\n", "MASTER_PORT of the environment: 'http'"},
	        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535", "mode: sync-pp\n", "MASTER_PORT of the environment: '65535'"},
	        {"RANK=1 WORLD_SIZE=2 MASTER_PORT=29500", "mode: sync-pp\n", "link_below: box 2 of 2 is linked with box 1"},
	        {"RANK=1 WORLD_SIZE=3" TORCHRUN, "mode: sync-pp\n", "link_above: box 2 of 3 is linked with box 3"},
	        {"RANK=2 WORLD_SIZE=3" TORCHRUN, "mode: sync-pp\n", "link_below: box 3 of 3 is linked with box 2"},
	        {"RANK=2 WORLD_SIZE=3" TORCHRUN, "mode: sync-pp\nboxes: 2\n", "box: 3 of 2 boxes"},
	        {"RANK=0 WORLD_SIZE=3" TORCHRUN, "mode: fluidpipe\n", "boxes: mode fluidpipe has 2 boxes, not 3"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		set_environment(cases[i].environment);
		refused(cases[i].yaml, NULL, cases[i].words);
	}
	set_environment("");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_launchers_say_which_box_this_is),
	        cmocka_unit_test(test_launchers_are_not_asked_in_mode_local),
	        cmocka_unit_test(test_launchers_that_cannot_be_right_are_refused),
	};
	return cmocka_run_group_tests(tests, place_make, place_remove);
}
