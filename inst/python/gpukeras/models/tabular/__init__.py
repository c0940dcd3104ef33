"""Networks for tables: embeddings of columns, backbones of published papers, and members."""
