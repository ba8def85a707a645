/* Activations that the plan saves in host memory: what a faster link and more host memory are worth, on simulated devices. That they leave
 * the same bits holds train/test_fates. */
#include "train/eight.h"

#include "forecast/judge.h"

#include <math.h>

enum { MICRO_BATCHES = 16, ROWS = 4, LITTLE_GIB = 128 };

struct outcome {
	double step_s;
	int64_t saved_bytes;
};

static struct outcome predict(struct eight *eight, double link_bytes_per_s, int64_t ram_gib)
{
	struct rh_forecast_input input;
	struct rh_forecast is;
	eight->deep.rig.config.per_device_train_batch_size = ROWS;
	eight->deep.rig.config.gradient_accumulation_steps = MICRO_BATCHES;
	eight->machine.devices = 1;
	eight->machine.ram_bytes = ram_gib << 30;
	eight->hardware.link.up_bytes_per_s = eight->hardware.link.down_bytes_per_s = link_bytes_per_s;
	eight->hardware.link.both_bytes_per_s = 1.7 * link_bytes_per_s;
	check_ok(rh_forecast_input_synthetic(&eight->deep.rig.config, 2, &input));
	check_ok(rh_forecast_judged(&eight->deep.rig.config, &eight->machine, &input, NULL, &is));
	struct outcome out = {is.step_seconds, is.plan.saved_bytes};
	printf("link %4.1f GB/s, %3lld GiB: %6.3f s, %6.1f GiB saved, %5.1f GiB of host memory\n", link_bytes_per_s / 1e9, (long long)ram_gib,
	       out.step_s, (double)out.saved_bytes / (1 << 30), (double)is.ram_bytes / (1 << 30));
	assert_true(is.ram_bytes <= eight->machine.ram_bytes && is.device_bytes <= is.device_budget);
	rh_forecast_free(&is);
	rh_forecast_input_free(&input);
	return out;
}

/* A link of PCIe 4.0 spares a seventh of the step; one of an eighth of that is used for nothing but what must travel. */
static void test_saves_as_much_as_the_link_carries(void **state)
{
	(void)state;
	static const double rates[] = {0.8e9, 3e9, 6e9, 12.5e9, 25e9, 50e9};
	struct eight eight;
	double before = HUGE_VAL;
	eight_open(&eight, 0, 1);
	for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
		struct outcome more = predict(&eight, rates[i], 700), little = predict(&eight, rates[i], LITTLE_GIB);
		assert_int_equal(little.saved_bytes, 0);
		assert_true(more.step_s <= little.step_s * 1.005 && more.step_s <= before * 1.005);
		assert_int_equal(more.saved_bytes > 0, rates[i] > 4e9);
		assert_true(rates[i] < 20e9 || more.step_s * 1.14 < little.step_s);
		before = more.step_s;
	}
	eight_close(&eight);
}

static void test_more_host_memory_is_not_slower(void **state)
{
	(void)state;
	static const int64_t gib[] = {LITTLE_GIB, 136, 150, 170, 200, 230, 260, 330, 400, 500, 700};
	struct eight eight;
	double before = HUGE_VAL;
	eight_open(&eight, 0, 1);
	for (size_t i = 0; i < sizeof gib / sizeof *gib; i++) {
		struct outcome now = predict(&eight, 25e9, gib[i]);
		assert_true(now.step_s <= before * 1.01);
		before = now.step_s;
	}
	eight_close(&eight);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_saves_as_much_as_the_link_carries),
	        cmocka_unit_test(test_more_host_memory_is_not_slower),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
