/* Parquet files: all rows, but of claims without end the first thousand. */
#include "fuzz/fuzz.h"

#include "parquet/parquet.h"

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	enum { ROWS = 1000, ROOM = 64 << 20 };
	struct rh_parquet *file;
	json_t *row;
	int rc = rh_parquet_open(fuzz_file(bytes, length), &file);
	if (!rc) {
		for (int rows = 0; rows < ROWS && (rc = rh_parquet_next(file, ROOM, &row)) > 0; rows++)
			json_decref(row);
		rh_parquet_close(file);
	}
	fuzz_refused(rc);
	return 0;
}

FUZZ_MAIN("parquet")
