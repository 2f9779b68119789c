transport_SRC :=
