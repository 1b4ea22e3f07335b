"""Beyond one process: streams that adapt together, benches and services spread over a cluster."""
