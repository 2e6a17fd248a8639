"""Studies that make the figures of the documentation: points run once and kept, results files, pages made from them."""
