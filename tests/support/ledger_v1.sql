CREATE TABLE kvsdk_ledger (
    id VARCHAR NOT NULL,
    operation_id VARCHAR NOT NULL,
    attempt INTEGER NOT NULL,
    at_us BIGINT NOT NULL,
    state VARCHAR NOT NULL,
    backend VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    session VARCHAR,
    tenant VARCHAR,
    reply_id VARCHAR,
    request_id VARCHAR,
    error VARCHAR,
    stop_reason VARCHAR,
    input_tokens BIGINT,
    cache_read_tokens BIGINT,
    cache_write_tokens BIGINT,
    fresh_tokens BIGINT,
    output_tokens BIGINT,
    reasoning_tokens BIGINT,
    cache_write_by_ttl VARCHAR,
    estimated VARCHAR,
    input_pico_usd BIGINT,
    cache_read_pico_usd BIGINT,
    cache_write_pico_usd BIGINT,
    output_pico_usd BIGINT,
    storage_pico_usd BIGINT,
    total_pico_usd BIGINT,
    without_cache_pico_usd BIGINT,
    saved_pico_usd BIGINT,
    low_pico_usd BIGINT,
    high_pico_usd BIGINT,
    price_source VARCHAR,
    is_cost_estimated BOOLEAN NOT NULL,
    cost_reason VARCHAR,
    ttft_s FLOAT,
    total_s FLOAT,
    metadata VARCHAR,
    PRIMARY KEY (id)
);
INSERT INTO kvsdk_ledger VALUES('row_1','op_1',1,1796040001123456,'ok','anthropic','m','user-42','acme','msg_1','req_1','RateLimited','end_turn',100,60,30,10,5,2,'{"5m": 10, "1h": 20}','input_tokens,output_tokens',1000000,1,0,12345678901234567,0,1500000000000,2000000000000,-500000000000,1000000000000,1500000000000,'a list',TRUE,'a reason',0.25,1.5,'{"team": "blue", "\u00fc": "\u00e9"}');
INSERT INTO kvsdk_ledger VALUES('row_2','op_2',1,1796040002123456,'ok','anthropic','m',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,FALSE,NULL,NULL,NULL,NULL);
CREATE TABLE kvsdk_ledger_info (
    key VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    PRIMARY KEY (key)
);
INSERT INTO kvsdk_ledger_info VALUES('version','1');
CREATE INDEX kvsdk_ledger_at ON kvsdk_ledger (at_us);
CREATE INDEX kvsdk_ledger_operation ON kvsdk_ledger (operation_id);
