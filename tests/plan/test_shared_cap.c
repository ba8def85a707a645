/* CPU devices share what the rest of a plan leaves of max_ram: the planner finds a cap wherever one fits. The reference tries them all. */
#include "check.h"

#include "config/config.h"
#include "core/error.h"
#include "core/minmax.h"
#include "forecast/forecast_input.h"
#include "forecast/machine_find.h"
#include "session/session.h"

enum { CAPS = 40 };

struct planned {
	int rc;
	int64_t device, total;
};

/* One session serves all plans: they differ in lengths and caps. */
struct bench {
	struct rh_config config;
	struct rh_machine_found found;
	struct rh_session session;
};

static void bench_open(struct bench *bench, const char *devices)
{
	char *words[] = {"--config-name", "examples/models/gpt2-medium",   "--hardware", "tests/plan/golden-cpu.yaml",    "--dtype",
	                 "bfloat16",      "--per-device-train-batch-size", "1",          "--gradient-accumulation-steps", "4",
	                 "--gpus",        (char *)(uintptr_t)devices};
	check_ok(rh_config_load("plan", (int)(sizeof words / sizeof *words), words, NULL, &bench->config));
	check_ok(rh_machine_find(&bench->config, &bench->found));
	check_ok(rh_session_simulate(&bench->config, &bench->found.machine, &bench->session));
}

static void bench_close(struct bench *bench)
{
	rh_session_close(&bench->session);
	rh_machine_found_free(&bench->found);
	rh_config_free(&bench->config);
}

static struct planned plan(struct bench *bench, int64_t max_ram, int64_t max_vram)
{
	struct rh_forecast_input input;
	bench->config.max_ram = max_ram;
	bench->config.max_vram = max_vram;
	check_ok(rh_forecast_input_synthetic(&bench->config, 0, &input));
	rh_run_plan_free(&bench->session.plan);
	struct planned out = {.rc = rh_session_plan(&bench->session, &input.work, RH_STAGES_PACKED)};
	out.device = bench->session.plan.bytes.device;
	out.total = bench->session.plan.bytes.total;
	rh_forecast_input_free(&input);
	rh_error_clear();
	return out;
}

static int fits_any_cap(struct bench *bench, int64_t max_ram)
{
	for (int i = 1; i < CAPS; i++)
		if (!plan(bench, max_ram, max_ram * i / CAPS).rc)
			return 1;
	return 0;
}

/* Memory from too little on. 6,500 MiB at 4,096 tokens take five caps, one below the other, until a plan leaves as much. */
static void test_what_fits_some_cap_fits_without_one(void **state)
{
	(void)state;
	static const struct {
		const char *devices;
		int64_t length;
	} cases[] = {{"1", 4096}, {"1", 16384}, {"2", 1024}, {"4", 4096}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct bench bench;
		int fitting = 0, refused = 0;
		bench_open(&bench, cases[i].devices);
		bench.config.max_length = cases[i].length;
		for (int64_t mib = 5500; mib <= 9500; mib += 500) {
			struct planned shared = plan(&bench, mib << 20, 0);
			int fits = fits_any_cap(&bench, mib << 20);
			if (fits && shared.rc)
				fail_msg("%s devices, %lld tokens: %lld MiB are refused", cases[i].devices, (long long)cases[i].length,
				         (long long)mib);
			assert_true(shared.rc || shared.total <= mib << 20);
			assert_true(shared.rc == 0 || shared.rc == RH_DOES_NOT_FIT);
			if (!shared.rc)
				assert_int_equal(plan(&bench, mib << 20, shared.device).rc, 0);
			fitting += !shared.rc;
			refused += shared.rc != 0;
		}
		printf("%s devices, %lld tokens: %d sizes fit, %d do not\n", cases[i].devices, (long long)cases[i].length, fitting,
		       refused);
		assert_true(fitting > 0);
		bench_close(&bench);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_what_fits_some_cap_fits_without_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
