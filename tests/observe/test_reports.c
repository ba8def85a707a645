/* Event files as TensorBoard's reader takes them, and the table. `make reference` reads the former with TensorBoard itself. */
#include "check.h"

#include "core/file.h"
#include "observe/events.h"
#include "observe/reports.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static struct rh_step_report step_of(int64_t step)
{
	return (struct rh_step_report){.step = step,
	                               .epoch = (double)step / 4,
	                               .loss = 2.5,
	                               .grad_norm = NAN,
	                               .learning_rate = 0.25,
	                               .tokens_per_second = 100,
	                               .trained_tokens = 7};
}

/* CRC-32C of "123456789" is e3069283 (RFC 3720's polynomial); masked as TFRecords have it. */
static void test_checksum_is_masked_crc32c(void **state)
{
	(void)state;
	uint32_t crc = 0xe3069283u;
	assert_int_equal(rh_events_checksum("123456789", 9), (crc >> 15 | crc << 17) + 0xa282ead8u);
	assert_int_equal(rh_events_checksum("", 0), 0xa282ead8u);
}

/* The bytes of the one event file below the folder. */
static struct rh_bytes read_events(void)
{
	char path[512] = "";
	char runs[96];
	snprintf(runs, sizeof runs, "%s/runs", folder);
	DIR *dir = opendir(runs);
	assert_non_null(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		if (strstr(entry->d_name, "tfevents"))
			snprintf(path, sizeof path, "%s/%s", runs, entry->d_name);
	closedir(dir);
	struct rh_bytes bytes;
	check_ok(rh_file_load(path, &bytes));
	return bytes;
}

static void test_events_are_records_with_tags_and_values(void **state)
{
	(void)state;
	struct rh_reports *reports;
	struct rh_step_report step = step_of(300);
	struct rh_eval_report eval = {.step = 300, .epoch = 1, .loss = 1.5, .seconds = 2};
	check_ok(rh_reports_open(folder, RH_REPORT_TENSORBOARD, 0, &reports));
	check_ok(rh_reports_step(reports, &step));
	check_ok(rh_reports_eval(reports, &eval));
	rh_reports_close(reports);
	struct rh_bytes bytes = read_events();
	size_t at = 0, records = 0;
	while (at < bytes.length) {
		uint64_t length;
		uint32_t sum;
		memcpy(&length, bytes.bytes + at, 8);
		memcpy(&sum, bytes.bytes + at + 8, 4);
		assert_int_equal(sum, rh_events_checksum(&length, 8));
		assert_true(at + 16 + length <= bytes.length);
		memcpy(&sum, bytes.bytes + at + 12 + length, 4);
		assert_int_equal(sum, rh_events_checksum(bytes.bytes + at + 12, length));
		assert_int_equal(bytes.bytes[at + 12], 9); /* wall time: field 1, 64 bits */
		if (records == 1) {                        /* step 300 as a varint, field 2 */
			assert_memory_equal(bytes.bytes + at + 21, "\x10\xac\x02", 3);
			static const char loss[] = "\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x20\x40"; /* value {tag, 2.5f} */
			assert_non_null(memmem(bytes.bytes + at, length, loss, sizeof loss - 1));
			assert_null(memmem(bytes.bytes + at, length, "grad_norm", 9)); /* not known */
		}
		at += 16 + length;
		records++;
	}
	assert_int_equal(records, 3);
	rh_bytes_free(&bytes);
}

/* TensorBoard then drops what it has of later steps. */
static void test_events_of_a_resumed_run_begin_behind_its_step(void **state)
{
	(void)state;
	char runs[96];
	struct rh_reports *reports;
	snprintf(runs, sizeof runs, "%s/runs", folder);
	check_ok(rh_dir_remove(runs));
	check_ok(rh_reports_open(folder, RH_REPORT_TENSORBOARD, 300, &reports));
	rh_reports_close(reports);
	struct rh_bytes bytes = read_events();
	static const char start[] = "\x10\xad\x02\x3a\x02\x08\x01"; /* step 301, session_log {START} */
	assert_non_null(memmem(bytes.bytes, bytes.length, start, sizeof start - 1));
	rh_bytes_free(&bytes);
}

static void assert_table(const char *text)
{
	char path[96];
	struct rh_bytes bytes;
	snprintf(path, sizeof path, "%s/metrics.csv", folder);
	check_ok(rh_file_load(path, &bytes));
	assert_string_equal(bytes.bytes, text);
	rh_bytes_free(&bytes);
}

#define HEAD "step,epoch,loss,grad_norm,learning_rate,tokens_per_second,trained_tokens,eval_loss\n"

static void test_table_goes_on_behind_the_step_resumed_from(void **state)
{
	(void)state;
	struct rh_reports *reports;
	struct rh_step_report one = step_of(4), two = step_of(8);
	struct rh_eval_report eval = {.step = 8, .epoch = 2, .loss = 1.5};
	check_ok(rh_reports_open(folder, RH_REPORT_CSV, 0, &reports));
	check_ok(rh_reports_step(reports, &one));
	check_ok(rh_reports_step(reports, &two));
	check_ok(rh_reports_eval(reports, &eval));
	rh_reports_close(reports);
	assert_table(HEAD "4,1,2.5,,0.25,100,7,\n8,2,2.5,,0.25,100,7,\n8,2,,,,,,1.5\n");
	check_ok(rh_reports_open(folder, RH_REPORT_CSV, 8, &reports));
	rh_reports_close(reports);
	assert_table(HEAD "4,1,2.5,,0.25,100,7,\n8,2,2.5,,0.25,100,7,\n8,2,,,,,,1.5\n");
	check_ok(rh_reports_open(folder, RH_REPORT_CSV, 5, &reports));
	check_ok(rh_reports_step(reports, &two));
	rh_reports_close(reports);
	assert_table(HEAD "4,1,2.5,,0.25,100,7,\n8,2,2.5,,0.25,100,7,\n");
}

int main(void)
{
	snprintf(folder, sizeof folder, "/tmp/roundhouse-reports-%ld", (long)getpid());
	check_ok(rh_dir_make(folder));
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_checksum_is_masked_crc32c),
	        cmocka_unit_test(test_events_are_records_with_tags_and_values),
	        cmocka_unit_test(test_events_of_a_resumed_run_begin_behind_its_step),
	        cmocka_unit_test(test_table_goes_on_behind_the_step_resumed_from),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	check_ok(rh_dir_remove(folder));
	return failed;
}
