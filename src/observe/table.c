#include "observe/table.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char head[] = "step,epoch,loss,grad_norm,learning_rate,tokens_per_second,trained_tokens,eval_loss\n";

struct rh_table {
	struct rh_file_log *log;
	struct rh_text line;
};

/* Bytes of the head and of the whole lines that tell of steps up to `step`; 0 where the file is another program's. */
static int find_end(const char *path, int64_t step, int64_t *length)
{
	struct rh_bytes file;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	const char *at = file.bytes, *newline;
	*length = 0;
	if (!strncmp(at, head, sizeof head - 1))
		for (at += sizeof head - 1; (newline = memchr(at, '\n', file.length - (size_t)(at - file.bytes))); at = newline + 1)
			if (strtoll(at, NULL, 10) > step)
				break;
	*length = at - file.bytes;
	rh_bytes_free(&file);
	return 0;
}

int rh_table_open(const char *dir, int64_t step, struct rh_table **out)
{
	struct rh_table *table = rh_alloc(1, sizeof *table);
	char *path = rh_path_join(dir, "metrics.csv");
	int64_t length = 0;
	int rc = table && path ? 0 : -ENOMEM;
	if (!rc && step > 0 && rh_file_exists(path))
		rc = find_end(path, step, &length);
	if (!rc)
		rc = rh_file_log_open(path, length, &table->log);
	if (!rc && !length)
		rc = rh_file_log_append(table->log, head, sizeof head - 1);
	rh_free(path);
	if (rc)
		rh_table_close(table);
	else
		*out = table;
	return rc;
}

/* A field, with the comma before it. */
struct field {
	const char *format;
	double value; /* not finite: the field is empty */
};

static int begin_line(struct rh_table *table, int64_t step, const struct field *field, size_t count)
{
	struct rh_text *line = &table->line;
	line->length = 0;
	int rc = rh_text_printf(line, "%lld", (long long)step);
	for (size_t i = 0; !rc && i < count; i++)
		rc = isfinite(field[i].value) ? rh_text_printf(line, field[i].format, field[i].value) : rh_text_append(line, ",", 1);
	return rc;
}

static int end_line(struct rh_table *table)
{
	int rc = rh_text_append(&table->line, "\n", 1);
	return rc ? rc : rh_file_log_append(table->log, table->line.bytes, table->line.length);
}

int rh_table_step(struct rh_table *table, const struct rh_step_report *report)
{
	const struct field field[] = {{",%.6g", report->epoch},
	                              {",%.8g", report->loss},
	                              {",%.6g", report->grad_norm},
	                              {",%.8g", report->learning_rate},
	                              {",%.6g", report->tokens_per_second}};
	int rc = begin_line(table, report->step, field, sizeof field / sizeof *field);
	if (!rc)
		rc = rh_text_printf(&table->line, ",%lld,", (long long)report->trained_tokens);
	return rc ? rc : end_line(table);
}

int rh_table_eval(struct rh_table *table, const struct rh_eval_report *report)
{
	const struct field field[] = {{",%.6g", report->epoch}, {",", NAN}, {",", NAN}, {",", NAN}, {",", NAN}, {",", NAN},
	                              {",%.8g", report->loss}}; /* a step's own figures are empty */
	int rc = begin_line(table, report->step, field, sizeof field / sizeof *field);
	return rc ? rc : end_line(table);
}

void rh_table_close(struct rh_table *table)
{
	if (!table)
		return;
	rh_file_log_close(table->log);
	rh_text_free(&table->line);
	rh_free(table);
}
