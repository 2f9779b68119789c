include $(sort $(wildcard $(BR2_EXTERNAL_KEEL_PATH)/package/*/*.mk))
