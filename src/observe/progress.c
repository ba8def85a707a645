#include "observe/progress.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/size.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS_MAX = 400, COLUMNS_USUAL = 80, BAR_LEAST = 12, BAR_MOST = 42, BAR_FROM_COLUMNS = 50, PIECE_BYTES = 96, DRIVES_SHOWN = 4 };
/* Of the loss's trend, in steps: it is shown from the 20th on, and compares running means over about 10 and about 50. */
enum { TREND_FROM = 20, TREND_RECENT = 10, TREND_EARLIER = 50 };
static const double redraw_seconds = 0.1;

/* The parts of a line, in the order in which they are shown. */
enum piece {
	PIECE_STEP,
	PIECE_EPOCH,
	PIECE_LOSS,
	PIECE_REWARD,
	PIECE_GRAD,
	PIECE_RATE,
	PIECE_SPEED,
	PIECE_LEFT,
	PIECE_VRAM,
	PIECE_RAM,
	PIECE_NVME,
	PIECE_NVME_STEP,
	PIECES
};

/* A narrow terminal keeps the first of these. */
static const enum piece importance[PIECES] = {PIECE_STEP, PIECE_LOSS,  PIECE_LEFT, PIECE_SPEED, PIECE_REWARD, PIECE_RATE,
                                              PIECE_GRAD, PIECE_EPOCH, PIECE_RAM,  PIECE_VRAM,  PIECE_NVME,   PIECE_NVME_STEP};

struct rh_progress {
	pthread_mutex_t lock;
	int descriptor, columns;
	enum rh_progress_style style;
	struct rh_step_report last; /* protected by lock, like all below */
	int has_last;               /* last holds a report */
	int64_t rows_done, rows;    /* of an evaluation that goes on; rows 0: none does */
	double rows_seconds_left;
	int64_t load_done, load_bytes; /* of a model that is loaded; load_bytes 0: none is */
	double load_began;
	int64_t losses;                   /* steps in these means */
	double recent_loss, earlier_loss; /* of about ten steps, of about fifty */
	int drawn, aside;                 /* the bar stands on the terminal; a log line is being written */
	double drawn_seconds;
};

static void write_all(int descriptor, const char *bytes, size_t length)
{
	while (length) {
		ssize_t written = write(descriptor, bytes, length);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return; /* a terminal that went away does not stop a run */
		bytes += written;
		length -= (size_t)written;
	}
}

static int columns_of(const struct rh_progress *progress)
{
	struct winsize size = {0};
	int columns = progress->columns;
	if (!columns && !ioctl(progress->descriptor, TIOCGWINSZ, &size))
		columns = size.ws_col;
	if (columns <= 0)
		columns = COLUMNS_USUAL;
	return columns < COLUMNS_MAX ? columns : COLUMNS_MAX;
}

static void format_bytes(const char *name, int64_t bytes, char *out)
{
	*out = 0;
	if (bytes > 0)
		snprintf(out, PIECE_BYTES, "%s %s", name, rh_size(bytes).text);
}

static void format_left(double seconds, char *out)
{
	*out = 0;
	if (!(seconds >= 0 && seconds < 1e9))
		return;
	int64_t whole = (int64_t)(seconds + 0.5);
	long long hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
	if (hours)
		snprintf(out, PIECE_BYTES, "%lld:%02lld:%02lld left", hours, minutes, rest);
	else
		snprintf(out, PIECE_BYTES, "%lld:%02lld left", minutes, rest);
}

/* A figure that is not known is an empty piece. */
static void format_real(const char *format, double value, char *out)
{
	*out = 0;
	if (!isnan(value))
		snprintf(out, PIECE_BYTES, format, value);
}

/* "12+13", a figure of MiB for each drive; beyond a few their sum. */
static void format_drives(const int64_t *bytes, int drives, char *out, size_t room)
{
	double sum = 0;
	size_t used = 0;
	*out = 0;
	for (int d = 0; d < drives; d++) {
		sum += (double)bytes[d] / 1048576;
		if (drives <= DRIVES_SHOWN && used < room)
			used += (size_t)snprintf(out + used, room - used, "%s%.0f", d ? "+" : "", (double)bytes[d] / 1048576);
	}
	if (drives > DRIVES_SHOWN)
		snprintf(out, room, "%.0f", sum);
}

static void format_nvme_step(const struct rh_step_report *report, char *out)
{
	char read[32], written[32];
	*out = 0;
	if (!report->nvme_drives)
		return;
	format_drives(report->nvme_read_bytes, report->nvme_drives, read, sizeof read);
	format_drives(report->nvme_written_bytes, report->nvme_drives, written, sizeof written);
	snprintf(out, PIECE_BYTES, "a step reads %s MiB, writes %s, waits %.2f s", read, written, report->nvme_wait_seconds);
}

/* Of losses over answers: how often the better answer has the larger reward, and by how much; KTO's estimate where there are no pairs. */
static void format_reward(const struct rh_figures *figures, char *out)
{
	char margin[32];
	format_real(figures->count[RH_FIGURE_REWARDS_ACCURACIES] ? "accuracy %.2f" : "kl %.3g",
	            rh_figure_of(figures, figures->count[RH_FIGURE_REWARDS_ACCURACIES] ? RH_FIGURE_REWARDS_ACCURACIES : RH_FIGURE_KL), out);
	format_real("margin %.3g", rh_figure_of(figures, RH_FIGURE_REWARDS_MARGINS), margin);
	if (*out && *margin)
		snprintf(out + strlen(out), PIECE_BYTES - strlen(out), "  %s", margin);
}

/* Whether a report is of one step or the mean of those since the last line. */
enum span { SPAN_STEP, SPAN_MEAN };

static void make_pieces(const struct rh_step_report *report, enum span span, char pieces[PIECES][PIECE_BYTES])
{
	size_t speed;
	snprintf(pieces[PIECE_STEP], PIECE_BYTES, "step %lld/%lld", (long long)report->step, (long long)report->steps);
	format_real("epoch %.2f", report->epoch, pieces[PIECE_EPOCH]);
	format_real(span == SPAN_MEAN ? "mean loss %.4f" : "loss %.4f", report->loss, pieces[PIECE_LOSS]);
	format_reward(&report->figures, pieces[PIECE_REWARD]);
	format_real("grad norm %.3g", report->grad_norm, pieces[PIECE_GRAD]);
	format_real("lr %.3g", report->learning_rate, pieces[PIECE_RATE]);
	format_real(report->tokens_per_second < 100 ? "%.1f tokens/s" : "%.0f tokens/s", report->tokens_per_second, pieces[PIECE_SPEED]);
	speed = strlen(pieces[PIECE_SPEED]);
	if (speed && report->planned_tokens_per_second > 0)
		snprintf(pieces[PIECE_SPEED] + speed, PIECE_BYTES - speed, " (%.0f %% of plan)",
		         100 * report->tokens_per_second / report->planned_tokens_per_second);
	format_left(report->seconds_left, pieces[PIECE_LEFT]);
	format_bytes("device", report->vram_peak_bytes, pieces[PIECE_VRAM]);
	format_bytes("ram", report->ram_peak_bytes, pieces[PIECE_RAM]);
	format_bytes("nvme", report->nvme_peak_bytes, pieces[PIECE_NVME]);
	format_nvme_step(report, pieces[PIECE_NVME_STEP]);
}

/* The pieces that fit into `columns`, the important ones first, in the order of enum piece, two blanks between. Returns the length. */
static int join_pieces(const struct rh_step_report *report, enum span span, const char *trend, int columns, char *line)
{
	char pieces[PIECES][PIECE_BYTES];
	int kept[PIECES] = {0}, total = 0, used = 0;
	make_pieces(report, span, pieces);
	if (*pieces[PIECE_LOSS] && *trend)
		snprintf(pieces[PIECE_LOSS] + strlen(pieces[PIECE_LOSS]), 16, " %s", trend);
	for (int i = 0; i < PIECES; i++) {
		int length = (int)strlen(pieces[importance[i]]);
		int widened = total + (total ? 2 : 0) + length;
		if (!length || widened > columns)
			continue;
		kept[importance[i]] = 1;
		total = widened;
	}
	line[0] = 0;
	for (int i = 0; i < PIECES; i++)
		if (kept[i])
			used += snprintf(line + used, (size_t)(columns + 1 - used), "%s%s", used ? "  " : "", pieces[i]);
	return used;
}

/* Columns for the text beside the bar, where there is room for one. */
static int text_columns(int columns)
{
	return columns >= BAR_FROM_COLUMNS ? columns - BAR_LEAST - 2 : columns;
}

/* Into line[COLUMNS_MAX + 1]: "[#####-----]  step 5/10  ...", the bar where there is room for it. */
static void put_bar(int64_t done, int64_t all, const char *text, int columns, char *line)
{
	int length = (int)strlen(text), room = columns - length - 2;
	room = room < BAR_MOST ? room : BAR_MOST;
	if (room < BAR_LEAST) {
		memcpy(line, text, (size_t)length + 1);
		return;
	}
	double share = all > 0 ? (double)done / (double)all : 0;
	share = share < 0 ? 0 : share > 1 ? 1 : share;
	int cells = room - 2, filled = (int)(share * cells);
	line[0] = '[';
	memset(line + 1, '#', (size_t)filled);
	memset(line + 1 + filled, '-', (size_t)(cells - filled));
	snprintf(line + 1 + cells, (size_t)(COLUMNS_MAX - cells), "]  %s", text);
}

/* By more than a hundredth. */
static const char *trend_of(const struct rh_progress *progress)
{
	double apart = progress->recent_loss - progress->earlier_loss, level = progress->earlier_loss / 100;
	return progress->losses < TREND_FROM ? "" : apart < -level ? "falling" : apart > level ? "rising" : "level";
}

static void count_loss(struct rh_progress *progress, double loss)
{
	if (!isfinite(loss))
		return;
	double n = (double)++progress->losses;
	progress->recent_loss += (loss - progress->recent_loss) / fmin(n, TREND_RECENT);
	progress->earlier_loss += (loss - progress->earlier_loss) / fmin(n, TREND_EARLIER);
}

static void make_bar(const struct rh_progress *progress, int columns, char *line)
{
	char text[COLUMNS_MAX + 1], left[PIECE_BYTES];
	if (progress->load_bytes) {
		snprintf(text, sizeof text, "loading the model: %s of %s", rh_size(progress->load_done).text,
		         rh_size(progress->load_bytes).text);
		text[columns] = 0;
		put_bar(progress->load_done, progress->load_bytes, text, columns, line);
		return;
	}
	if (progress->rows) {
		format_left(progress->rows_seconds_left, left);
		int length =
		        snprintf(text, sizeof text, "evaluated %lld/%lld rows", (long long)progress->rows_done, (long long)progress->rows);
		if (*left && length + 2 + (int)strlen(left) <= text_columns(columns))
			snprintf(text + length, sizeof text - (size_t)length, "  %s", left);
		text[columns] = 0;
		put_bar(progress->rows_done, progress->rows, text, columns, line);
		return;
	}
	join_pieces(&progress->last, SPAN_STEP, trend_of(progress), text_columns(columns), text);
	put_bar(progress->last.step, progress->last.steps, text, columns, line);
}

/* Called with the lock held. The last column stays free: some terminals wrap on it. */
static void draw(struct rh_progress *progress)
{
	char line[COLUMNS_MAX + 1], out[COLUMNS_MAX + 16];
	make_bar(progress, columns_of(progress) - 1, line);
	int length = snprintf(out, sizeof out, "\r%s\x1b[K", line);
	write_all(progress->descriptor, out, (size_t)length);
	progress->drawn = 1;
}

static void wipe(struct rh_progress *progress)
{
	if (progress->drawn)
		write_all(progress->descriptor, "\r\x1b[K", 4);
	progress->drawn = 0;
}

static void before_log(void *context)
{
	struct rh_progress *progress = context;
	pthread_mutex_lock(&progress->lock);
	wipe(progress);
	progress->aside = 1;
	pthread_mutex_unlock(&progress->lock);
}

static void after_log(void *context)
{
	struct rh_progress *progress = context;
	pthread_mutex_lock(&progress->lock);
	progress->aside = 0;
	if (progress->has_last || progress->rows || progress->load_bytes)
		draw(progress);
	pthread_mutex_unlock(&progress->lock);
}

enum rh_progress_style rh_progress_style_of(int descriptor)
{
	const char *terminal = getenv("TERM");
	return isatty(descriptor) && terminal && strcmp(terminal, "dumb") != 0 ? RH_PROGRESS_BAR : RH_PROGRESS_LINES;
}

int rh_progress_open(int descriptor, enum rh_progress_style style, int columns, struct rh_progress **out)
{
	struct rh_progress *progress = rh_alloc(1, sizeof *progress);
	if (!progress)
		return -ENOMEM;
	pthread_mutex_init(&progress->lock, NULL);
	progress->descriptor = descriptor;
	progress->columns = columns;
	progress->style = style;
	if (style == RH_PROGRESS_BAR)
		rh_log_hooks(before_log, after_log, progress);
	*out = progress;
	return 0;
}

/* Figures of the last logged step stand where a step brings none of its own. */
static void take(struct rh_progress *progress, const struct rh_step_report *report)
{
	struct rh_step_report merged = *report;
	if (progress->has_last) {
		double *const now[] = {&merged.loss, &merged.grad_norm, &merged.learning_rate, &merged.tokens_per_second};
		const double before[] = {progress->last.loss, progress->last.grad_norm, progress->last.learning_rate,
		                         progress->last.tokens_per_second};
		for (size_t i = 0; i < sizeof now / sizeof now[0]; i++)
			if (isnan(*now[i]))
				*now[i] = before[i];
		if (!merged.nvme_drives) {
			merged.nvme_drives = progress->last.nvme_drives;
			merged.nvme_wait_seconds = progress->last.nvme_wait_seconds;
			memcpy(merged.nvme_read_bytes, progress->last.nvme_read_bytes, sizeof merged.nvme_read_bytes);
			memcpy(merged.nvme_written_bytes, progress->last.nvme_written_bytes, sizeof merged.nvme_written_bytes);
		}
	}
	progress->last = merged;
}

void rh_progress_step(struct rh_progress *progress, const struct rh_step_report *report, double now_seconds)
{
	if (progress->style != RH_PROGRESS_BAR)
		return;
	pthread_mutex_lock(&progress->lock);
	int due = !progress->has_last || now_seconds - progress->drawn_seconds >= redraw_seconds || report->step >= report->steps;
	count_loss(progress, report->loss);
	take(progress, report);
	progress->has_last = 1;
	if (due && !progress->aside) {
		draw(progress);
		progress->drawn_seconds = now_seconds;
	}
	pthread_mutex_unlock(&progress->lock);
}

void rh_progress_logged(struct rh_progress *progress, const struct rh_step_report *report)
{
	char line[COLUMNS_MAX + 1];
	int columns = progress->style == RH_PROGRESS_BAR ? columns_of(progress) - 1 : COLUMNS_MAX;
	join_pieces(report, SPAN_MEAN, "", columns, line);
	rh_note("%s", line); /* a bar steps aside for it */
}

void rh_progress_first(const struct rh_progress *progress, const struct rh_step_report *report)
{
	char pieces[PIECES][PIECE_BYTES];
	if (progress->style != RH_PROGRESS_LINES)
		return;
	make_pieces(report, SPAN_STEP, pieces);
	rh_note("%s done  %s  %s", pieces[PIECE_STEP], pieces[PIECE_SPEED], pieces[PIECE_LEFT]);
}

void rh_progress_rows(struct rh_progress *progress, int64_t done, int64_t rows, double seconds_left, double now_seconds)
{
	if (!progress || progress->style != RH_PROGRESS_BAR)
		return;
	pthread_mutex_lock(&progress->lock);
	int ends = done >= rows, due = !progress->rows || ends || now_seconds - progress->drawn_seconds >= redraw_seconds;
	progress->rows_done = done;
	progress->rows = ends ? 0 : rows;
	progress->rows_seconds_left = seconds_left;
	if (due && !progress->aside) {
		if (ends && !progress->has_last)
			wipe(progress);
		else
			draw(progress);
		progress->drawn_seconds = now_seconds;
	}
	pthread_mutex_unlock(&progress->lock);
}

void rh_progress_loading(struct rh_progress *progress, int64_t done_bytes, int64_t bytes, double now_seconds)
{
	enum { SHOWN_FROM = 1 }; /* seconds */
	if (progress->style != RH_PROGRESS_BAR)
		return;
	pthread_mutex_lock(&progress->lock);
	int is_first = !progress->load_began, ends = done_bytes >= bytes;
	if (is_first)
		progress->load_began = now_seconds;
	int shows = !ends && now_seconds - progress->load_began >= SHOWN_FROM;
	progress->load_done = done_bytes;
	progress->load_bytes = shows ? bytes : 0;
	if (shows && !progress->aside && now_seconds - progress->drawn_seconds >= redraw_seconds) {
		draw(progress);
		progress->drawn_seconds = now_seconds;
	}
	if (ends)
		wipe(progress);
	pthread_mutex_unlock(&progress->lock);
}

void rh_progress_close(struct rh_progress *progress)
{
	if (!progress)
		return;
	if (progress->style == RH_PROGRESS_BAR)
		rh_log_hooks(NULL, NULL, NULL);
	if (!progress->has_last)
		wipe(progress);
	if (progress->drawn)
		write_all(progress->descriptor, "\n", 1);
	pthread_mutex_destroy(&progress->lock);
	rh_free(progress);
}
