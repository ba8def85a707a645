/* The doctor through the program, on emulated GPUs, whose measurement is short: its JSON, the profile it saves, bad input. */
#define PROGRAM "roundhouse-emu"
#include "cli/runner.h"

#include "config/hardware.h"
#include "core/json.h"

static void open_scratch(struct scratch *scratch)
{
	scratch_open(scratch);
	if (access(program_path(), X_OK))
		check_skip("the doctor on emulated GPUs: %s is not built (the thread sanitizer does not know fibers)", program_path());
}

static double number_at(const json_t *root, const char *section, const char *part, const char *key)
{
	const json_t *at = json_object_get(json_object_get(root, section), part);
	at = key ? json_object_get(at, key) : at;
	if (!json_is_number(at))
		fail_msg("%s.%s%s%s is no number", section, part, key ? "." : "", key ? key : "");
	return json_number_value(at);
}

static void test_doctor_prints_json_and_saves_a_profile(void **state)
{
	(void)state;
	struct scratch scratch;
	struct rh_hardware hardware;
	json_t *root;
	open_scratch(&scratch);
	struct ran ran = run_line(&scratch, "doctor --device emu:2 --json --save %s/mine.yaml --nvme_dirs /var/tmp", scratch.dir);
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "doctor --json", &root));
	assert_true(number_at(root, "machine", "cores", NULL) >= 1);
	assert_true(number_at(root, "machine", "ram_bytes", NULL) > 0);
	assert_true(number_at(root, "measured", "devices", NULL) == 2);
	assert_true(number_at(root, "measured", "bf16_flops_per_s", NULL) > 0);
	assert_true(number_at(root, "measured", "copies", "up_bytes_per_s") > 0);
	assert_true(number_at(root, "measured", "memory", "read_bytes_per_s") > 0);
	assert_true(number_at(root, "measured", "optimizer", "split_bytes_per_s") > 0);
	assert_true(number_at(root, "measured", "drive", "read_bytes_per_s") >= 0);
	assert_true(number_at(root, "measured", "gpu", "multiprocessors") > 0);
	assert_true(json_array_size(json_object_get(json_object_get(root, "measured"), "products")) > 4);
	assert_true(json_is_array(json_object_get(root, "warnings")));
	assert_string_equal(json_string_value(json_object_get(root, "profile")), path_of("%s/mine.yaml", scratch.dir));
	check_ok(rh_hardware_read(path_of("%s/mine.yaml", scratch.dir), &hardware));
	assert_int_equal(hardware.devices, 2);
	assert_true(hardware.device.gemms > 0 && hardware.device.memory > 0 && !hardware.device.on_host_cores);
	rh_hardware_free(&hardware);
	json_decref(root);
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_doctor_saves_under_a_name(void **state)
{
	(void)state;
	struct scratch scratch;
	struct rh_hardware hardware;
	int assumed = 1;
	open_scratch(&scratch);
	setenv("XDG_CONFIG_HOME", scratch.dir, 1);
	run_ok(&scratch, "doctor --device emu:1 --save local --nvme_dirs %s", scratch.dir);
	check_ok(rh_hardware_local(1, 1, &hardware, &assumed));
	assert_int_equal(assumed, 0);
	assert_int_equal(hardware.devices, 1);
	unsetenv("XDG_CONFIG_HOME");
	rh_hardware_free(&hardware);
	scratch_close(&scratch);
}

static void test_doctor_refuses_in_one_line(void **state)
{
	(void)state;
	static const struct {
		const char *line, *part;
	} bad[] = {
	        {"doctor --device emu:1 --save /nowhere/at/all.yaml", "there is no directory /nowhere/at"},
	        {"doctor --device gpu", "device: 'gpu' is not allowed"},
	        {"doctor --device sim:rtx4090x8", "sim"},
	        {"doctor --learning_rate 1", "this verb has no use for it"},
	};
	struct scratch scratch;
	open_scratch(&scratch);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ran ran = run_line(&scratch, "%s", bad[i].line);
		check_failed(&ran, bad[i].part);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_doctor_prints_json_and_saves_a_profile),
	        cmocka_unit_test(test_doctor_saves_under_a_name),
	        cmocka_unit_test(test_doctor_refuses_in_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
