"""A/B measurement: arms, workloads, server and engine processes, records, statistics, plots and reports."""
